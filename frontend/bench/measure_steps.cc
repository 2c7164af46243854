// What each step of making and of destroying a sandbox costs, as the service's
// own log says it: its lines end with "; ms: STEP 0.123, STEP 4.567 = 4.690 ms".
#include <fstream>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "frontend/bench/internal.h"
#include "frontend/bench/samples.h"
#include "frontend/bench/step_lines.h"

namespace cordon::bench {

namespace {

constexpr std::chrono::milliseconds kLogSettles(200);

std::vector<std::string> linesFrom(const std::string& path, std::streamoff offset) {
  std::ifstream file(path);
  file.seekg(offset);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::vector<Row> measureSteps(const Context& context) {
  const std::string& log = context.options.log;
  if (log.empty()) return {};
  std::ifstream file(log, std::ios::ate);
  std::streamoff begin = file.tellg();
  inTurns(context, "steps", [&](unsigned turn) {
    for (unsigned i = 0; i < turn; ++i) {
      requireSuccess(context.client.run(sandboxOf(""), client::command({kProgram})));
    }
  });
  std::this_thread::sleep_for(kLogSettles);  // the last line is written after its answer
  StepTable table;
  for (const std::string& line : linesFrom(log, begin)) table.add(line);
  std::vector<Row> rows;
  for (const auto& [name, samples] : table.steps()) rows.push_back(rowOf(name, "ms", samples));
  if (rows.empty()) throw std::runtime_error(log + ": no step was logged there");
  return rows;
}

}  // namespace cordon::bench
