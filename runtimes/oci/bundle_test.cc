#include "runtimes/oci/bundle.h"

#include <capnp/compat/json.h>
#include <capnp/message.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "jailer/seccomp.h"
#include "runtimes/oci/json_writer.h"

namespace cordon::runtimes {
namespace {

class Json {
 public:
  explicit Json(const std::string& text) {
    auto root = message_.initRoot<capnp::JsonValue>();
    capnp::JsonCodec codec;
    codec.setMaxNestingDepth(32);
    codec.decodeRaw(kj::arrayPtr(text.data(), text.size()), root);
  }
  // "a.b.2.c"
  capnp::JsonValue::Reader at(const std::string& path) {
    capnp::JsonValue::Reader value = message_.getRoot<capnp::JsonValue>().asReader();
    size_t begin = 0;
    while (begin < path.size()) {
      size_t end = std::min(path.find('.', begin), path.size());
      value = step(value, path.substr(begin, end - begin));
      begin = end + 1;
    }
    return value;
  }
  std::string string(const std::string& path) { return at(path).getString().cStr(); }
  double number(const std::string& path) { return at(path).getNumber(); }
  std::vector<std::string> strings(const std::string& path) {
    std::vector<std::string> values;
    for (auto item : at(path).getArray()) values.push_back(item.getString().cStr());
    return values;
  }
  std::set<std::string> keys(const std::string& path) {
    std::set<std::string> names;
    for (auto field : at(path).getObject()) names.insert(field.getName().cStr());
    return names;
  }

 private:
  static capnp::JsonValue::Reader step(capnp::JsonValue::Reader value, const std::string& name) {
    if (value.isArray()) return value.getArray()[static_cast<unsigned>(std::stoul(name))];
    for (auto field : value.getObject()) {
      if (field.getName() == name.c_str()) return field.getValue();
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }
  capnp::MallocMessageBuilder message_;
};

Image image() {
  Image image;
  image.name = "host-usr";
  image.rootfs = "/run/cordon/x/images/image-1";
  return image;
}

BundleInput input(const Image& image) {
  BundleInput input;
  input.hostname = "sb-\"odd\\";
  input.image = &image;
  input.limits.files = 256;
  input.limits.diskBytes = 64 << 20;
  input.limits.tmpBytes = 32 << 20;
  input.limits.shmBytes = 16 << 20;
  input.ids = {0x70010000, 65536};
  input.cgroupsPath = "/cordon/x/sb/agent";
  input.hardFiles = 1 << 20;
  input.hardCore = ~uint64_t{0};
  input.cpus = 2;
  input.seccomp = jailer::agentFilterAsOciJson();
  return input;
}

TEST(JsonWriter, EscapesAndSeparates) {
  JsonWriter json;
  json.beginObject().field("a\"b", "\x01\\\n").field("n", 18446744073709551615ull);
  json.key("l").beginArray().beginObject().endObject().number(-1).boolean(false).endArray();
  json.field("s", std::vector<std::string>{"x", "y"}).endObject();
  EXPECT_EQ(json.text(),
            "{\"a\\\"b\":\"\\u0001\\\\\\u000a\",\"n\":18446744073709551615,"
            "\"l\":[{},-1,false],\"s\":[\"x\",\"y\"]}");
}

TEST(Bundle, ProcessIsTheAgentWithThreeCapabilities) {
  Image root = image();
  Json json(bundleConfig(input(root)));
  EXPECT_EQ(json.strings("process.args"), std::vector<std::string>{"/.cordon/vm-agent"});
  EXPECT_EQ(json.number("process.user.uid"), 65000);
  EXPECT_EQ(json.number("process.user.gid"), 65000);
  EXPECT_TRUE(json.at("process.noNewPrivileges").getBoolean());
  EXPECT_FALSE(json.at("process.terminal").getBoolean());
  EXPECT_EQ(json.string("process.cwd"), "/");
  std::vector<std::string> three = {"CAP_KILL", "CAP_SETGID", "CAP_SETUID"};
  for (const char* set : {"bounding", "effective", "permitted", "inheritable", "ambient"}) {
    EXPECT_EQ(json.strings(std::string("process.capabilities.") + set), three) << set;
  }
  EXPECT_EQ(json.string("hostname"), "sb-\"odd\\");
}

TEST(Bundle, NoHooksNoAnnotationsNoDevices) {
  Image root = image();
  Json json(bundleConfig(input(root)));
  EXPECT_EQ(json.keys(""), (std::set<std::string>{"ociVersion", "process", "root", "hostname",
                                                  "mounts", "linux"}));
  EXPECT_EQ(json.at("linux.devices").getArray().size(), 0u);
  EXPECT_TRUE(json.at("root.readonly").getBoolean());
  EXPECT_EQ(json.string("root.path"), root.rootfs);
}

TEST(Bundle, SevenNamespacesAndTheOwnRange) {
  Image root = image();
  BundleInput asked = input(root);
  asked.cgroupNamespacePath = "/proc/1/fd/9";
  Json json(bundleConfig(asked));
  std::set<std::string> types;
  for (auto item : json.at("linux.namespaces").getArray()) {
    for (auto field : item.getObject()) {
      if (field.getName() == "type") types.insert(field.getValue().getString().cStr());
    }
  }
  EXPECT_EQ(types,
            (std::set<std::string>{"pid", "network", "ipc", "uts", "mount", "user", "cgroup"}));
  EXPECT_EQ(json.string("linux.namespaces.6.path"), "/proc/1/fd/9");
  for (const char* which : {"linux.uidMappings", "linux.gidMappings"}) {
    ASSERT_EQ(json.at(which).getArray().size(), 1u);
    EXPECT_EQ(json.number(std::string(which) + ".0.containerID"), 0);
    EXPECT_EQ(json.number(std::string(which) + ".0.hostID"), 0x70010000);
    EXPECT_EQ(json.number(std::string(which) + ".0.size"), 65536);
  }
}

// Only what the sandbox's own kernel objects are: no bind mount, no host path.
TEST(Bundle, MountsAreSizedAndHaveNoHostPath) {
  Image root = image();
  Json json(bundleConfig(input(root)));
  std::map<std::string, std::set<std::string>> options;
  for (unsigned i = 0; i < json.at("mounts").getArray().size(); ++i) {
    std::string at = "mounts." + std::to_string(i);
    auto list = json.strings(at + ".options");
    options[json.string(at + ".destination")] = {list.begin(), list.end()};
    EXPECT_NE(json.string(at + ".source").substr(0, 1), "/");
    EXPECT_TRUE(std::set<std::string>({"proc", "sysfs", "tmpfs", "devpts"})
                    .count(json.string(at + ".type")));
  }
  EXPECT_TRUE(options["/work"].count("size=67108864"));
  EXPECT_TRUE(options["/work"].count("nr_inodes=16384"));
  EXPECT_TRUE(options["/work"].count("uid=1000"));
  EXPECT_TRUE(options["/tmp"].count("size=33554432"));
  EXPECT_TRUE(options["/dev/shm"].count("size=16777216"));
  for (auto& [destination, set] : options) {
    EXPECT_TRUE(set.count("nosuid")) << destination;
    if (destination != "/dev/pts") {
      EXPECT_TRUE(set.count("nodev")) << destination;
    }
  }
  EXPECT_EQ(options.size(), 7u);
}

TEST(Bundle, RlimitsFitTheHost) {
  Image root = image();
  BundleInput asked = input(root);
  Json usual(bundleConfig(asked));
  EXPECT_EQ(usual.string("process.rlimits.0.type"), "RLIMIT_NOFILE");
  EXPECT_EQ(usual.number("process.rlimits.0.hard"), 4096);
  EXPECT_EQ(usual.string("process.rlimits.1.type"), "RLIMIT_CORE");
  EXPECT_EQ(usual.number("process.rlimits.1.hard"), 1);
  EXPECT_EQ(usual.number("process.rlimits.1.soft"), 1);
  asked.hardFiles = 1000;
  asked.hardCore = 0;
  Json poor(bundleConfig(asked));
  EXPECT_EQ(poor.number("process.rlimits.0.hard"), 1000);
  EXPECT_EQ(poor.number("process.rlimits.1.hard"), 0);
  asked.hardFiles = 1 << 20;
  asked.limits.files = 20'000;
  Json rich(bundleConfig(asked));
  EXPECT_EQ(rich.number("process.rlimits.0.hard"), 20'000);
}

TEST(Bundle, MasksAndResources) {
  Image root = image();
  BundleInput asked = input(root);
  Json v1(bundleConfig(asked));
  auto masked = v1.strings("linux.maskedPaths");
  std::set<std::string> set(masked.begin(), masked.end());
  for (const char* path : {"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/interrupts",
                           "/sys/devices/system/cpu/cpu1/thermal_throttle"}) {
    EXPECT_TRUE(set.count(path)) << path;
  }
  EXPECT_FALSE(v1.at("linux.resources.devices.0.allow").getBoolean());
  EXPECT_EQ(v1.number("linux.resources.cpu.shares"), 2048);
  EXPECT_EQ(v1.string("linux.seccomp.defaultAction"), "SCMP_ACT_ERRNO");
  EXPECT_EQ(v1.string("linux.cgroupsPath"), "/cordon/x/sb/agent");
  asked.cgroupV2 = true;
  Json v2(bundleConfig(asked));
  EXPECT_EQ(v2.keys("linux.resources.unified"), std::set<std::string>{"cpu.weight"});
  EXPECT_EQ(v2.keys("linux.resources").count("cpu"), 0u);
}

}  // namespace
}  // namespace cordon::runtimes
