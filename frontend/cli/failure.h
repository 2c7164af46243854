// How commands of `cordon` end other than well.
#pragma once
#include <stdexcept>
#include <string>

namespace cordon::cli {

// cordon's own errors; a program's exit status is its own.
inline constexpr int kOwnError = 125;
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;
// Something was not removed, an escape happened: the command did run.
inline constexpr int kNotClean = 1;

// Something the user has to change; what() is one sentence.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cordon::cli
