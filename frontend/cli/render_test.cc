#include "frontend/cli/render.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cordon::cli {
namespace {

client::Outcome exited(int code) {
  client::Outcome outcome;
  outcome.name = "sb-x";
  outcome.result.set_exit_code(code);
  return outcome;
}

TEST(Json, OfAnOutcomeHasTheDocumentedShape) {
  client::Outcome outcome = exited(3);
  v1::Verdict& verdict = *outcome.result.mutable_verdict();
  verdict.set_control(v1::MEMORY);
  verdict.set_limit(128);
  v1::Evidence& evidence = *verdict.add_evidence();
  evidence.set_counter("memory.oom_control oom_kill (exec)");
  evidence.set_after(1);
  verdict.add_others(v1::PROCESSES);
  outcome.result.mutable_usage()->set_wall_ms(1.5);
  outcome.result.mutable_stdout()->set_total(3);
  outcome.out.bytes = "out";
  outcome.result.mutable_timings()->set_exec_ms(2);
  Json json = Json::parse(line(toJson(outcome)));
  EXPECT_EQ(json["exit_code"], 3);
  EXPECT_TRUE(json["signal"].is_null());
  EXPECT_FALSE(json.contains("not_started"));
  EXPECT_EQ(json["verdict"]["control"], "memory");
  EXPECT_EQ(json["verdict"]["stopped"], false);
  const Json expected = {{"counter", "memory.oom_control oom_kill (exec)"},
                         {"before", 0},
                         {"after", 1},
                         {"source", "kernel"}};
  EXPECT_EQ(json["verdict"]["evidence"], Json::array({expected}));
  EXPECT_EQ(json["verdict"]["others"], Json::parse(R"(["processes"])"));
  EXPECT_EQ(json["usage"]["wall_ms"], 1.5);
  EXPECT_EQ(json["stdout"], Json::parse(R"({"total": 3, "dropped": 0, "text": "out"})"));
  EXPECT_EQ(json["stderr"], Json::parse(R"({"total": 0, "dropped": 0, "text": ""})"));
  EXPECT_EQ(json["timings"].size(), 3u);
}

TEST(Json, OfASignalAndOfAProgramThatDidNotStart) {
  client::Outcome outcome;
  outcome.result.set_signal(9);
  Json json = toJson(outcome);
  EXPECT_TRUE(json["exit_code"].is_null());
  EXPECT_EQ(json["signal"], 9);
  outcome.result.mutable_not_started()->set_error_number(ENOENT);
  outcome.result.mutable_not_started()->set_step("lookup");
  json = toJson(outcome);
  EXPECT_TRUE(json["exit_code"].is_null());
  EXPECT_TRUE(json["signal"].is_null());
  EXPECT_EQ(json["not_started"]["errno"], ENOENT);
  EXPECT_EQ(json["not_started"]["step"], "lookup");
}

TEST(Json, OfWhatWasRefusedIsThereWhenAsked) {
  client::Outcome outcome = exited(0);
  EXPECT_FALSE(toJson(outcome).contains("refused_calls"));
  auto& explanation = *outcome.result.mutable_explanation();
  Json json = toJson(outcome);
  EXPECT_EQ(json["refused_calls"], Json::array());
  EXPECT_EQ(json["refused_calls_incomplete"], "");
  EXPECT_EQ(text(explanation), "cordon: the seccomp profile refused no call\n");

  auto add = [&](const char* name, uint64_t count) {
    auto& call = *explanation.add_refused_calls();
    call.set_name(name);
    call.set_count(count);
  };
  add("unshare", 30);
  add("bpf", 2);
  explanation.set_incomplete("no\x1b");
  json = toJson(outcome);
  EXPECT_EQ(json["refused_calls"],
            Json::parse(R"([{"name": "unshare", "count": 30}, {"name": "bpf", "count": 2}])"));
  EXPECT_EQ(text(explanation),
            "cordon: calls that the seccomp profile refused:\n  unshare  30\n  bpf      2\n"
            "cordon: this may not be all: no\\x1b\n");
}

TEST(Json, OutputThatIsNotUtf8IsBase64) {
  client::Collected collected;
  collected.bytes = std::string("\xff\x00 \x80", 4);
  Json json = streamJson({}, collected);
  EXPECT_FALSE(json.contains("text"));
  EXPECT_EQ(json["base64"], "/wAggA==");
}

TEST(Json, SaysWhereBytesAreMissing) {
  client::Collected collected;
  collected.bytes = "headtail";
  collected.gapAt = 4;
  v1::StreamTotals totals;
  totals.set_total(100);
  totals.set_dropped(92);
  EXPECT_EQ(streamJson(totals, collected),
            Json::parse(R"({"total": 100, "dropped": 92, "text": "headtail", "gap_at": 4})"));
}

TEST(Json, IsOneLineOfAsciiWhateverItHolds) {
  client::Outcome outcome = exited(0);
  for (int byte = 0; byte < 128; ++byte) outcome.out.bytes += char(byte);
  outcome.out.bytes += "\u202e\u009b";
  outcome.name = "\xff\xfe";  // never valid, and never a reason to throw
  outcome.result.mutable_verdict()->set_note("\x1b[2J\xc3");
  std::string text = line(toJson(outcome));
  ASSERT_EQ(text.back(), '\n');
  for (char c : text.substr(0, text.size() - 1)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << int(c);
  EXPECT_EQ(Json::parse(text)["stdout"]["text"], outcome.out.bytes);
}

TEST(Json, OfAnError) {
  v1::ErrorDetail detail;
  detail.set_reason("LIMIT_ZERO");
  detail.set_message("no");
  detail.set_subject("pids");
  Json json = toJson(client::ApiError("INVALID_ARGUMENT", detail));
  EXPECT_EQ(json["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(json["error"]["reason"], "LIMIT_ZERO");
  EXPECT_EQ(json["error"]["message"], "no");
  EXPECT_EQ(json["error"]["subject"], "pids");
}

TEST(Json, AnUnknownControlOfANewerServiceIsNamedSo) {
  v1::Verdict verdict;
  verdict.set_control(v1::Control(77));
  EXPECT_EQ(toJson(verdict)["control"], "unknown");
}

TEST(Base64, IsThatOfTheRfc) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("fooba"), "Zm9vYmE=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

v1::Result notStarted(const char* step, int error) {
  v1::Result result;
  result.mutable_not_started()->set_step(step);
  result.mutable_not_started()->set_error_number(error);
  return result;
}

TEST(ExitStatus, MirrorsTheProgram) {
  v1::Result result;
  result.set_exit_code(42);
  EXPECT_EQ(exitStatus(result), 42);
  result.set_signal(15);
  EXPECT_EQ(exitStatus(result), 143);
}

TEST(ExitStatus, TellsNotFoundFromNotExecutable) {
  EXPECT_EQ(exitStatus(notStarted("lookup", ENOENT)), 127);
  EXPECT_EQ(exitStatus(notStarted("exec", ENOENT)), 127);
  EXPECT_EQ(exitStatus(notStarted("exec", EACCES)), 126);
  EXPECT_EQ(exitStatus(notStarted("cwd", ENOENT)), 126);
  EXPECT_EQ(exitStatus(notStarted("user", EINVAL)), 126);
}

TEST(Text, OfSandboxesIsATableAndSafe) {
  v1::ListResponse list;
  v1::SandboxInfo& info = *list.add_sandboxes();
  info.set_name("sb-abc");
  info.set_runtime("runc\x1b[31m");
  info.set_state("ready");
  info.set_created_unix_ms(1000);
  info.set_execs_total(3);
  info.set_execs_running(1);
  EXPECT_EQ(table(list, 66'000),
            "NAME    RUNTIME       STATE  AGE   EXECS\n"
            "sb-abc  runc\\x1b[31m  ready  1m5s  3 (1 running)\n");
}

TEST(Text, OfRuntimesSaysWhyNotAndWhatToDo) {
  v1::RuntimesResponse response;
  response.set_one_trust_zone(true);
  v1::RuntimeInfo& runc = *response.add_runtimes();
  runc.set_name("runc");
  runc.set_reason("needs root");
  runc.set_fix("run as root");
  v1::RuntimeInfo& host = *response.add_runtimes();
  host.set_name("host");
  host.set_available(true);
  v1::SeccompProfile& profile = *response.add_seccomp_profiles();
  profile.set_name("tuned");
  profile.set_calls(70);
  profile.set_known_calls(362);
  std::string text = table(response);
  EXPECT_NE(text.find("seccomp profile tuned: 70 of 362 calls pass\n"), std::string::npos);
  Json json = toJson(response);
  EXPECT_EQ(json["seccomp_profiles"][0]["profile"], "tuned");
  EXPECT_EQ(json["seccomp_profiles"][0]["calls"], 70);
  EXPECT_NE(text.find("one trust zone"), std::string::npos);
  EXPECT_NE(text.find("runc: needs root\nrunc: to fix it: run as root\n"), std::string::npos);
  EXPECT_NE(text.find("not a sandbox"), std::string::npos);
}

v1::BoundaryCard someCard() {
  v1::BoundaryCard card;
  card.set_is_sandbox(true);
  card.set_runtime_version("1.2");
  card.mutable_init()->mutable_origin()->set_from("/proc/PID/status");
  card.mutable_init()->set_no_new_privs(true);
  auto& ns = *card.add_namespaces();
  ns.set_kind("mnt");
  ns.set_inode(7);
  ns.set_service_inode(8);
  ns.set_own(v1::OWN_YES);
  auto& mount = *card.mutable_mounts()->add_mounts();
  mount.set_where("/dev/null");
  mount.set_type("devtmpfs");
  mount.set_root("/null");
  mount.set_flags("rw,nosuid\x1b[1m");
  card.mutable_seccomp()->set_in_force(3);
  card.mutable_seccomp()->set_of_service(2);
  card.mutable_core_scheduling()->set_cookie(4711);
  return card;
}

TEST(Text, OfACardHasEachFactAndIsSafe) {
  std::string shown = text(someCard());
  EXPECT_NE(shown.find("runtime version  1.2 [broker]\n"), std::string::npos) << shown;
  EXPECT_NE(shown.find("mnt: its own, inode 7 (the service's: 8)"), std::string::npos) << shown;
  EXPECT_NE(shown.find("/dev/null  devtmpfs[/null]  rw,nosuid"), std::string::npos) << shown;
  EXPECT_NE(shown.find("filters in force on the init: 3"), std::string::npos) << shown;
  EXPECT_NE(shown.find("beside it, cookie 4711\n"), std::string::npos) << shown;
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_EQ(shown.find("NONE"), std::string::npos);
}

TEST(Text, OfACardSaysWhatIsNotKnown) {
  v1::BoundaryCard card = someCard();
  card.mutable_init()->mutable_origin()->set_missing("status: gone");
  card.mutable_mounts()->mutable_origin()->set_missing("too long");
  card.mutable_core_scheduling()->set_cookie(0);
  card.mutable_core_scheduling()->mutable_origin()->set_missing("SMT is off");
  auto& ns = *card.mutable_namespaces(0);
  ns.set_inode(0);
  ns.set_own(v1::OWN_UNKNOWN);
  ns.mutable_origin()->set_missing("nobody may");
  std::string shown = text(card);
  for (const char* each :
       {"init             not known: status: gone\n", "mounts           not known: too long\n",
        "mnt: not known whether its own", "inode not readable: nobody may",
        "filters in force on the init: not known"}) {
    EXPECT_NE(shown.find(each), std::string::npos) << each << shown;
  }
  EXPECT_EQ(shown.find("no new privs"), std::string::npos) << "made up";
  EXPECT_NE(shown.find("core scheduling  not in force: SMT is off\n"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("/dev/null"), std::string::npos);
  Json json = toJson(card);
  EXPECT_TRUE(json["mounts"]["mounts"].is_null());
  EXPECT_EQ(json["mounts"]["missing"], "too long");
  EXPECT_TRUE(json["core_scheduling"]["cookie"].is_null());
  EXPECT_EQ(json["core_scheduling"]["missing"], "SMT is off");
  EXPECT_FALSE(json["init"].contains("no_new_privs"));
  EXPECT_TRUE(json["namespaces"][0]["own"].is_null());
}

TEST(Text, OfACardOfNoSandboxSaysSoFirst) {
  v1::BoundaryCard card = someCard();
  card.set_is_sandbox(false);
  EXPECT_EQ(text(card).find("boundary         NONE. This is not a sandbox"), 0u) << text(card);
  card.set_missing("its init does not run");
  EXPECT_EQ(text(card), "boundary  not known: its init does not run\n");
  EXPECT_EQ(toJson(card).dump(), R"({"missing":"its init does not run"})");
}

TEST(Text, OfAReceiptNamesWhatIsLeft) {
  v1::Receipt receipt;
  v1::ReceiptItem& item = *receipt.add_left();
  item.set_kind("cgroup");
  item.set_name("/cordon/x");
  item.set_error_number(EBUSY);
  EXPECT_EQ(text(receipt),
            "LEFT cgroup /cordon/x: Device or resource busy\n"
            "INCOMPLETE: what is left is recorded and retried\n");
}

}  // namespace
}  // namespace cordon::cli
