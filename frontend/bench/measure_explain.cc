// What `explain` costs: an exec of Python, which makes refused calls by itself,
// and a loop of nothing but a refused call; each beside the same unexplained.
#include <string>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"

namespace cordon::bench {

namespace {

using Clock = std::chrono::steady_clock;

// Few enough that none waits for the frontend's rate limit.
constexpr char kLoop[] =
    "import ctypes, time\n"
    "call = ctypes.CDLL(None).syscall\n"
    "start = time.perf_counter()\n"
    "for _ in range(2000): call(272, 0)\n"
    "print((time.perf_counter() - start) / 2000 * 1e6)\n";

class Explained {
 public:
  Explained(client::Client& client, const char* profile) : client_(client) {
    auto spec = sandboxOf(kJail);
    spec.set_seccomp(profile);
    spec.set_explain(true);
    id_ = client.acquire(spec).id();
  }
  ~Explained() {
    try {
      client_.release(id_);
    } catch (const client::ApiError&) {
      // Its time to live ends it; the measurement's own error matters more.
    }
  }
  Explained(const Explained&) = delete;
  Explained& operator=(const Explained&) = delete;

  client::Outcome run(const char* source, bool explain) {
    auto spec = client::command({"/usr/bin/python3", "-c", source});
    spec.set_explain(explain);
    auto outcome = client_.exec(id_, spec);
    requireSuccess(outcome);
    return outcome;
  }

 private:
  client::Client& client_;
  std::string id_;
};

uint64_t refusedBy(const client::Outcome& outcome) {
  uint64_t count = 0;
  for (const auto& call : outcome.result.explanation().refused_calls()) count += call.count();
  return count;
}

Row compared(const std::string& name, const char* unit, const std::vector<double>& explained,
             const std::vector<double>& plain, std::string note) {
  Row row = withBaseline(rowOf(name, unit, explained), "unexplained", median(plain));
  row.ratio = row.p50 / *row.baseline;
  row.note = std::move(note);
  return row;
}

Row pythonRow(const Context& context, const char* profile) {
  Explained sandbox(context.client, profile);
  uint64_t refused = 0;
  auto measure = [&](bool explain) {
    auto start = Clock::now();
    auto outcome = sandbox.run("pass", explain);
    double elapsed = millisecondsSince(start);
    if (explain) refused = refusedBy(outcome);
    return elapsed;
  };
  for (unsigned i = 0; i < kWarmUps; ++i) measure(i % 2 == 0);
  std::vector<double> explained, plain;
  std::string name = std::string("python3 -c pass, ") + profile;
  inTurns(context, name.c_str(), [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) explained.push_back(measure(true));
    for (unsigned i = 0; i < turn; ++i) plain.push_back(measure(false));
  });
  return compared(name, "ms", explained, plain, std::to_string(refused) + " refused calls");
}

Row loopRow(const Context& context) {
  Explained sandbox(context.client, "default");
  std::vector<double> explained, plain;
  inTurns(context, "a refused call", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) {
      explained.push_back(std::stod(sandbox.run(kLoop, true).out.bytes));
      plain.push_back(std::stod(sandbox.run(kLoop, false).out.bytes));
    }
  });
  return compared("a refused call in a loop", "us", explained, plain,
                  "past 10,000 calls in a row an exec gets 5,000 a second");
}

}  // namespace

std::vector<Row> measureExplain(const Context& context) {
  std::string whyNot = whyNotOffered(context, kJail);
  if (!whyNot.empty()) return {unmeasured("explain", "ms", "", whyNot)};
  return {pythonRow(context, "default"), pythonRow(context, "tuned"), loopRow(context)};
}

}  // namespace cordon::bench
