#include "frontend/cli/command_line.h"

namespace cordon::cli {
namespace {

// Whether the flag in `word` takes the word after it.
bool takesNext(const CLI::App& command, const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  const CLI::Option* option = command.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_min() > 0;
}

}  // namespace

SplitLine splitAtProgram(const CLI::App& command, const std::vector<std::string>& words,
                         size_t positionals) {
  SplitLine split;
  size_t at = 0;
  while (at < words.size()) {
    const std::string& word = words[at];
    if (word == "--") {
      ++at;
      break;
    }
    bool flag = word.size() > 1 && word.front() == '-';
    if (!flag && positionals == 0) break;
    split.ours.push_back(word);
    ++at;
    if (!flag) {
      --positionals;
    } else if (takesNext(command, word) && at < words.size()) {
      split.ours.push_back(words[at++]);
    }
  }
  split.program.assign(words.begin() + long(at), words.end());
  return split;
}

}  // namespace cordon::cli
