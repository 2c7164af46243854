// A helper program that measures on request: a line in, a line out.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace cordon::bench {

class Coprocess {
 public:
  // Starts it. Throws std::system_error.
  explicit Coprocess(const std::vector<std::string>& argv);
  // Closes its standard input, at which it cleans up and ends, and waits.
  ~Coprocess();
  Coprocess(const Coprocess&) = delete;
  Coprocess& operator=(const Coprocess&) = delete;

  // Sends a line and returns the answer's line. Throws when the helper ended
  // or answered "error: …".
  std::string ask(const std::string& line);
  // ask() for a duration in nanoseconds, as milliseconds.
  double askMilliseconds(const std::string& line);
  pid_t pid() const { return child; }

 private:
  std::string readLine();

  std::string program;
  pid_t child = -1;
  int toChild = -1, fromChild = -1;
  std::string pending;
};

}  // namespace cordon::bench
