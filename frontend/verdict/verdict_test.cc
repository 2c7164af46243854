// Runs judge() on the tables of docs/verdicts.md, and on what a table can't say.
#include "frontend/verdict/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace cordon::verdict {
namespace {

// --- the page ---------------------------------------------------------------

using Row = std::vector<std::string>;

std::string trim(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (true) {
    size_t next = text.find(separator, at);
    std::string part = trim(text.substr(at, next - at));
    if (!part.empty()) parts.push_back(part);
    if (next == std::string::npos) return parts;
    at = next + separator.size();
  }
}

Row cells(const std::string& line) {
  Row row;
  std::stringstream stream(line.substr(1, line.rfind('|') - 1));
  for (std::string cell; std::getline(stream, cell, '|');) row.push_back(trim(cell));
  return row;
}

std::vector<Row> table(const std::string& title, size_t columns) {
  std::ifstream page(VERDICTS_MD);
  if (!page) throw std::runtime_error("can't read " VERDICTS_MD);
  std::string line;
  while (std::getline(page, line) && line != "<!-- table: " + title + " -->") {
  }
  std::getline(page, line);  // the heading
  std::getline(page, line);  // the rule below it
  std::vector<Row> rows;
  while (std::getline(page, line) && !line.empty() && line.front() == '|') {
    rows.push_back(cells(line));
    if (rows.back().size() != columns) throw std::runtime_error("columns of: " + line);
  }
  return rows;
}

// --- the notation -----------------------------------------------------------

// Plain numbers, K/M/G in bytes, ms and s in `timeUnit`s per second.
uint64_t quantity(const std::string& text, uint64_t perSecond = 1000) {
  static const std::regex form("([0-9]+)(K|M|G|ms|s)?");
  std::smatch match;
  if (!std::regex_match(text, match, form)) throw std::runtime_error("not a quantity: " + text);
  uint64_t value = std::stoull(match[1]);
  std::string unit = match[2];
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  if (unit == "G") return value << 30;
  if (unit == "ms") return value * perSecond / 1000;
  if (unit == "s") return value * perSecond;
  return value;
}

Kind kindOf(const std::string& name) {
  static const std::map<std::string, Kind> kinds = {{"oom", Kind::kOomKills},
                                                    {"pids", Kind::kPidsRefused},
                                                    {"cpu", Kind::kCpuUsageUs},
                                                    {"peak", Kind::kMemoryPeakBytes}};
  return kinds.at(name);
}

Scope scopeOf(const std::string& name) {
  static const std::map<std::string, Scope> scopes = {
      {"exec", Scope::kExec}, {"sandbox", Scope::kSandbox}, {"host", Scope::kHost}};
  return scopes.at(name);
}

struct Token {
  std::regex form;
  std::function<void(Facts&, const std::smatch&)> apply;
};

Facts::Exit& exitOf(Facts& facts) {
  if (!facts.exit) throw std::runtime_error("`main …` must come first");
  return *facts.exit;
}

void setLimit(Limits& limits, const std::string& name, const std::string& value) {
  const std::map<std::string, uint64_t*> fields = {
      {"memory", &limits.memoryBytes},      {"pids", &limits.pids},
      {"cpu_time", &limits.cpuTimeMs},      {"wall", &limits.wallMs},
      {"file_size", &limits.fileSizeBytes}, {"disk", &limits.diskBytes},
      {"output", &limits.outputBytes}};
  *fields.at(name) = quantity(value);
}

const std::vector<Token>& tokens() {
  static const std::vector<Token> all = {
      {std::regex("([a-z_]+)=(\\w+)"),
       [](Facts& f, const std::smatch& m) { setLimit(f.limits, m[1], m[2]); }},
      {std::regex("([a-z]+)@([a-z]+) (\\w+)->(\\w+)"),
       [](Facts& f, const std::smatch& m) {
         std::string file = "file of " + m[1].str();
         f.before.push_back({kindOf(m[1]), scopeOf(m[2]), quantity(m[3], 1'000'000), file});
         f.after.push_back({kindOf(m[1]), scopeOf(m[2]), quantity(m[4], 1'000'000), file});
       }},
      {std::regex("new ([a-z]+)@([a-z]+) (\\w+)"),
       [](Facts& f, const std::smatch& m) {
         f.after.push_back({kindOf(m[1]), scopeOf(m[2]), quantity(m[3], 1'000'000), "a file"});
       }},
      {std::regex("main (exit|signal) ([0-9]+)"),
       [](Facts& f, const std::smatch& m) {
         if (!f.exit) f.exit.emplace();
         f.exit->signaled = m[1] == "signal";
         f.exit->code = uint32_t(quantity(m[2]));
       }},
      {std::regex("main lost"), [](Facts& f, const std::smatch&) { f.exit.reset(); }},
      {std::regex("main cpu (\\w+)"),
       [](Facts& f, const std::smatch& m) { exitOf(f).cpuUs = quantity(m[1], 1'000'000); }},
      {std::regex("fired (deadline|cancel|cpu_time)"),
       [](Facts& f, const std::smatch& m) {
         f.fired = m[1] == "deadline" ? Fired::kDeadline
                   : m[1] == "cancel" ? Fired::kCancel
                                      : Fired::kCpuTime;
       }},
      {std::regex("agent deadline"),
       [](Facts& f, const std::smatch&) { exitOf(f).killedByDeadline = true; }},
      {std::regex("ran (\\w+)"),
       [](Facts& f, const std::smatch& m) { f.wallUs = quantity(m[1], 1'000'000); }},
      {std::regex("stdout (\\w+) dropped (\\w+)"),
       [](Facts& f, const std::smatch& m) {
         if (!f.exit) return;
         f.exit->stdoutTotal = quantity(m[1]);
         f.exit->stdoutDropped = quantity(m[2]);
       }},
      {std::regex("stderr (\\w+) dropped (\\w+)"),
       [](Facts& f, const std::smatch& m) {
         if (!f.exit) return;
         f.exit->stderrTotal = quantity(m[1]);
         f.exit->stderrDropped = quantity(m[2]);
       }},
      {std::regex("frontend dropped (\\w+)"),
       [](Facts& f, const std::smatch& m) { f.frontendDropped = quantity(m[1]); }},
      {std::regex("full (/\\w+)"),
       [](Facts& f, const std::smatch& m) {
         if (f.exit) f.exit->scratch.push_back({m[1], 64u << 20, 0, 1000, 990});
       }},
      {std::regex("no inodes (/\\w+)"),
       [](Facts& f, const std::smatch& m) {
         if (f.exit) f.exit->scratch.push_back({m[1], 64u << 20, 60u << 20, 1000, 0});
       }},
      {std::regex("file at limit (/\\S+)"),
       [](Facts& f, const std::smatch& m) {
         if (f.exit) f.exit->fileAtLimit = m[1];
       }},
      {std::regex("init (signal|exit) ([0-9]+)"),
       [](Facts& f, const std::smatch& m) {
         f.initExited = true;
         f.initSignaled = m[1] == "signal";
         f.initCode = uint32_t(quantity(m[2]));
       }},
      {std::regex("destroyed"), [](Facts& f, const std::smatch&) { f.sandboxDestroyed = true; }},
      {std::regex("shared"), [](Facts& f, const std::smatch&) { f.countersShared = true; }},
      {std::regex("left behind ([0-9]+)"),
       [](Facts& f, const std::smatch& m) { f.leftBehind = uint32_t(quantity(m[1])); }},
      {std::regex("left running ([0-9]+)"),
       [](Facts& f, const std::smatch& m) { exitOf(f).leftRunning = uint32_t(quantity(m[1])); }},
  };
  return all;
}

void applyFacts(Facts& facts, const std::string& notation) {
  for (const std::string& part : split(notation, ";")) {
    bool known = false;
    for (const Token& token : tokens()) {
      std::smatch match;
      if (!std::regex_match(part, match, token.form)) continue;
      token.apply(facts, match);
      known = true;
      break;
    }
    if (!known) throw std::runtime_error("not in the notation: " + part);
  }
}

bool saysWhoFired(const std::string& part) {
  return part.starts_with("fired ") || part == "agent deadline";
}

// The facts of a row of the precedence table, with what it says about firing
// left out where another row decides that.
void applyWithoutFiring(Facts& facts, const std::string& notation) {
  for (const std::string& part : split(notation, ";")) {
    if (!saysWhoFired(part)) applyFacts(facts, part);
  }
}

std::string controlsText(const std::vector<Control>& controls) {
  std::vector<std::string> names;
  for (Control control : controls) names.push_back(name(control));
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& each : names) text += (text.empty() ? "" : ", ") + each;
  return text;
}

void expectVerdict(const Verdict& verdict, const std::string& notation) {
  std::vector<std::string> parts = split(notation, ";");
  std::string head =
      std::string(name(verdict.control)) + (verdict.stopped ? ", stopped" : ", not stopped");
  ASSERT_FALSE(parts.empty());
  EXPECT_EQ(head, parts[0]);
  std::string others;
  bool shared = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    size_t space = parts[i].find(' ');
    std::string key = parts[i].substr(0, space);
    std::string value = space == std::string::npos ? "" : parts[i].substr(space + 1);
    if (key == "shared") {
      shared = true;
    } else if (key == "others") {
      others = value;
    } else if (key == "source") {
      ASSERT_FALSE(verdict.evidence.empty());
      EXPECT_EQ(name(verdict.evidence.front().source), value);
    } else if (key == "limit") {
      EXPECT_EQ(verdict.limit, quantity(value));
    } else if (key == "observed") {
      EXPECT_EQ(verdict.observed, quantity(value));
    } else if (key == "note") {
      EXPECT_NE(verdict.note.find(value), std::string::npos) << verdict.note;
    } else {
      FAIL() << "not in the notation: " << parts[i];
    }
  }
  EXPECT_EQ(verdict.shared, shared);
  EXPECT_EQ(controlsText(verdict.others), others);
}

TEST(VerdictsPage, EveryCaseIsWhatTheCodeSays) {
  std::vector<Row> rows = table("cases", 3);
  ASSERT_GE(rows.size(), 60u);
  for (const Row& row : rows) {
    SCOPED_TRACE(row[0]);
    Facts facts;
    applyFacts(facts, row[1]);
    expectVerdict(judge(facts), row[2]);
  }
}

TEST(VerdictsPage, EachRowOfThePrecedenceAlone) {
  std::vector<Row> rows = table("precedence", 5);
  ASSERT_GE(rows.size(), 16u);
  for (const Row& row : rows) {
    SCOPED_TRACE(row[0] + " " + row[1] + ": " + row[3]);
    Facts facts;
    applyFacts(facts, row[2]);
    applyFacts(facts, row[3]);
    Verdict verdict = judge(facts);
    EXPECT_STREQ(name(verdict.control), row[0].c_str());
    EXPECT_EQ(verdict.stopped, row[1] == "yes");
    EXPECT_FALSE(verdict.evidence.empty());
    EXPECT_TRUE(verdict.others.empty());
  }
}

TEST(VerdictsPage, OfTwoRowsTheUpperWins) {
  std::vector<Row> rows = table("precedence", 5);
  for (size_t upper = 0; upper < rows.size(); ++upper) {
    for (size_t lower = upper + 1; lower < rows.size(); ++lower) {
      SCOPED_TRACE(rows[upper][0] + " over " + rows[lower][0] + ": " + rows[upper][3] + " + " +
                   rows[lower][3]);
      Facts facts;
      applyFacts(facts, rows[upper][2]);
      applyFacts(facts, rows[upper][3]);
      applyWithoutFiring(facts, rows[lower][3]);
      Verdict verdict = judge(facts);
      EXPECT_STREQ(name(verdict.control), rows[upper][0].c_str());
      EXPECT_EQ(verdict.stopped, rows[upper][1] == "yes");
    }
  }
}

// --- what a table can't say -------------------------------------------------

Facts factsOf(const std::string& notation) {
  Facts facts;
  applyFacts(facts, notation);
  return facts;
}

TEST(Verdict, ARefusedForkNeverStopsHoweverMainEnded) {
  for (const char* main : {"main exit 0", "main exit 1", "main exit 137", "main signal 6",
                           "main signal 9", "main signal 11", "main signal 25"}) {
    Verdict verdict = judge(factsOf(std::string(main) + "; pids=64; pids@exec 0->1"));
    EXPECT_EQ(verdict.control, Control::kProcesses) << main;
    EXPECT_FALSE(verdict.stopped) << main;
  }
}

TEST(Verdict, NoSignalAloneIsAVerdictButSigsys) {
  for (int signal = 1; signal <= 64; ++signal) {
    Verdict verdict = judge(factsOf("main signal " + std::to_string(signal) +
                                    "; memory=128M; cpu_time=2s; file_size=1M; wall=5s; disk=64M"));
    EXPECT_EQ(verdict.control, signal == 31 ? Control::kSyscall : Control::kNone) << signal;
  }
}

TEST(Verdict, NoExitCodeAloneIsAVerdict) {
  for (int code = 0; code <= 255; ++code) {
    Verdict verdict = judge(factsOf("main exit " + std::to_string(code) +
                                    "; memory=128M; cpu_time=2s; file_size=1M; wall=5s; disk=64M"));
    EXPECT_EQ(verdict.control, Control::kNone) << code;
    EXPECT_TRUE(verdict.evidence.empty()) << code;
  }
}

TEST(Verdict, ACounterThatFellDidNotMove) {
  EXPECT_EQ(judge(factsOf("main signal 9; memory=128M; oom@exec 5->1")).control, Control::kNone);
}

TEST(Verdict, EvidenceCarriesFileScopeAndBothValues) {
  Facts facts = factsOf("main signal 9; memory=128M");
  facts.before = {{Kind::kOomKills, Scope::kExec, 2, "memory.oom_control oom_kill"}};
  facts.after = {{Kind::kOomKills, Scope::kExec, 3, "memory.oom_control oom_kill"}};
  Verdict verdict = judge(facts);
  ASSERT_EQ(verdict.evidence.size(), 2u);
  EXPECT_EQ(verdict.evidence[0].counter, "memory.oom_control oom_kill (exec)");
  EXPECT_EQ(verdict.evidence[0].before, 2u);
  EXPECT_EQ(verdict.evidence[0].after, 3u);
  EXPECT_EQ(verdict.evidence[0].source, Source::kKernel);
  EXPECT_EQ(verdict.evidence[1].source, Source::kAgent);
}

TEST(Verdict, EvidenceOfOthersFollowsThatOfTheControl) {
  Verdict verdict =
      judge(factsOf("main signal 9; memory=128M; pids=64; oom@exec 0->1; pids@exec 0->9"));
  ASSERT_EQ(verdict.evidence.size(), 3u);
  EXPECT_EQ(verdict.evidence[2].counter, "file of pids (exec)");
}

TEST(Verdict, HugeFiguresDoNotWrap) {
  Facts facts = factsOf("main signal 24; oom@exec 0->1; peak@sandbox 0->1");
  facts.limits.memoryBytes = facts.limits.cpuTimeMs = UINT64_MAX;
  facts.exit->cpuUs = 1000;
  EXPECT_EQ(judge(facts).control, Control::kHostLimit);
  facts.limits.cpuTimeMs = 2000;
  facts.exit->cpuUs = UINT64_MAX;
  EXPECT_EQ(judge(facts).control, Control::kCpuTime);
}

// --- the line ---------------------------------------------------------------

TEST(Describe, SaysWhatStoppedAndByWhichCounter) {
  Facts facts = factsOf("main signal 9; memory=128M");
  facts.before = {{Kind::kOomKills, Scope::kExec, 0, "memory.oom_control oom_kill"}};
  facts.after = {{Kind::kOomKills, Scope::kExec, 1, "memory.oom_control oom_kill"}};
  EXPECT_EQ(describe(judge(facts)),
            "cordon: stopped by memory: limit 128 MiB, memory.oom_control oom_kill (exec) 0 -> 1 "
            "(kernel)");
}

TEST(Describe, SaysWhenItOnlyRefused) {
  EXPECT_EQ(describe(judge(factsOf("main exit 0; pids=64; pids@exec 0->436"))),
            "cordon: not stopped, but limited by processes: limit 64, file of pids (exec) 0 -> 436 "
            "(kernel)");
}

TEST(Describe, HasHumanUnits) {
  EXPECT_EQ(describe(judge(factsOf("main signal 9; cpu_time=2s; cpu@exec 0->2050ms; "
                                   "fired cpu_time; pids@exec 0->1"))),
            "cordon: stopped by cpu_time: limit 2 s, observed 2.05 s, file of cpu (exec) 0 -> "
            "2050000 (kernel); also processes");
}

TEST(Describe, IsSilentWhenThereIsNothingToSay) {
  EXPECT_EQ(describe(judge(factsOf("main exit 1"))), "");
  EXPECT_EQ(describe(judge(factsOf("main exit 0; left behind 2"))), "");
}

TEST(Describe, NeverPrintsAControlCharacter) {
  Verdict verdict =
      judge(factsOf("main exit 1; file_size=1M; file at limit /work/a\x1b[2J\x07\xff\xc2\x9b"));
  std::string line = describe(verdict);
  EXPECT_NE(line.find("/work/a\\x1b[2J\\x07\\xff\\u{009b}"), std::string::npos) << line;
}

TEST(Names, AreThoseOfTheApi) {
  EXPECT_STREQ(name(Control::kNone), "none");
  EXPECT_STREQ(name(Control::kHostLimit), "host_limit");
  EXPECT_STREQ(name(Control::kSandboxLost), "sandbox_lost");
  EXPECT_STREQ(name(Source::kFrontend), "frontend");
}

}  // namespace
}  // namespace cordon::verdict
