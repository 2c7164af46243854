#include "broker/main/options.h"

#include <capnp/message.h>
#include <gtest/gtest.h>
#include <kj/exception.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "broker/main/identity.h"
#include "broker/main/spec.h"

namespace cordon::broker {
namespace {

Options parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "cordon-broker");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return parseOptions(static_cast<int>(argv.size() - 1), argv.data());
}

TEST(OptionsTest, DefaultsAndValues) {
  auto options = parse({"--state", "/s", "--id-span", "1879048192:16", "--max-sandboxes", "9",
                        "--allow-host-runtime", "--runc", "/x/runc"});
  EXPECT_EQ(options.state, "/s");
  EXPECT_EQ(options.ids.ranges, 16u);
  EXPECT_EQ(options.maxSandboxes, 9u);
  EXPECT_TRUE(options.allowHostRuntime);
  EXPECT_EQ(options.runc, "/x/runc");
  // One trust zone, whoever starts it.
  EXPECT_EQ(options.agentsUid, geteuid());
  EXPECT_EQ(parse({"--state", "/s"}).agentsUid, geteuid() == 0 ? 1879048193u : geteuid());
  EXPECT_NE(options.vmAgent.find("/vm-agent"), std::string::npos);
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_EQ(parse({"--state", "/s", "--default-runtime", "runc"}).defaultRuntime, "runc");
}

TEST(OptionsTest, WhatIsWrongIsRefused) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--state", "relative"},
      {"--state"},
      {"--state", "/s", "surplus"},
      {"--state", "/s", "--no-such-option"},
      {"--state", "/s", "--max-sandboxes", "0"},
      {"--state", "/s", "--max-sandboxes", "-1"},
      {"--state", "/s", "--max-sandboxes", "1x"},
      {"--state", "/s", "--agents-uid", "4294967295"},
      {"--state", "/s", "--id-span", "1"},
      {"--state", "/s", "--id-span", "1:1024"},
      {"--state", "/s", "--cgroup-base", "/"},
      {"--state", "/s", "--cgroup-base", "/cordon/../x"},
      {"--state", "/s", "--images", "/nonexistent"},
      {"--state", "/s", "--allow-host-runtime", "--agents-uid", "12345"},
      {"--state", "/s", "--allow-host-runtime", "--default-runtime", "host"},
  };
  for (auto& arguments : wrong) {
    EXPECT_THROW(parse(arguments), kj::Exception) << ::testing::PrintToString(arguments);
  }
}

TEST(IdentityTest, NamesAndTokensAreRandomAndOfOneShape) {
  EXPECT_TRUE(isSandboxName(newSandboxName()));
  EXPECT_NE(newSandboxName(), newSandboxName());
  EXPECT_EQ(newToken().size(), 32u);
  EXPECT_NE(newToken(), newToken());
  for (const char* no : {"", "sb-", "sb-aaaaaaaaa", "sb-aaaaaaaaaaa", "sb-aaaaaaaaa0",
                         "sb-../../../", "xb-aaaaaaaaaa"}) {
    EXPECT_FALSE(isSandboxName(no)) << no;
  }
}

TEST(IdentityTest, OnlyTheTokenMatchesItsHash) {
  auto token = newToken();
  auto hash = hashToken(token);
  EXPECT_EQ(hash.find(token), std::string::npos);
  EXPECT_TRUE(tokenMatches(token, hash));
  EXPECT_FALSE(tokenMatches(hash, hash));
  EXPECT_FALSE(tokenMatches("", hash));
  EXPECT_FALSE(tokenMatches(token, ""));
  EXPECT_FALSE(tokenMatches(token + "0", hash));
}

TEST(SpecTest, DefaultsAreFilledIn) {
  capnp::MallocMessageBuilder message;
  auto asked = message.initRoot<rpc::SandboxSpec>();
  auto spec = validateSpec(asked, Ceilings::ofThisHost());
  ASSERT_TRUE(spec.is<ValidSpec>());
  EXPECT_GT(spec.get<ValidSpec>().ttl, 0 * kj::SECONDS);
  EXPECT_GT(spec.get<ValidSpec>().idle, 0 * kj::SECONDS);
  EXPECT_GT(spec.get<ValidSpec>().limits.memoryBytes, 0u);
}

TEST(SpecTest, HostnamesAreLettersDigitsAndDashes) {
  auto ok = [](const std::string& name) {
    capnp::MallocMessageBuilder message;
    auto asked = message.initRoot<rpc::SandboxSpec>();
    asked.setHostname(name);
    return validateSpec(asked, Ceilings::ofThisHost()).is<ValidSpec>();
  };
  EXPECT_TRUE(ok("a"));
  EXPECT_TRUE(ok("a-b-9"));
  EXPECT_TRUE(ok(std::string(63, 'a')));
  EXPECT_FALSE(ok(std::string(64, 'a')));
  for (const char* no : {"-a", "a-", "a.b", "a b", "a/b", "a\n", "\xc3\xa4"}) EXPECT_FALSE(ok(no));
}

}  // namespace
}  // namespace cordon::broker
