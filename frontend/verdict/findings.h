// What the facts say about each control by itself. Which of them names the
// verdict is decided in verdict.cc.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "frontend/verdict/verdict.h"

namespace cordon::verdict {

struct Finding {
  explicit Finding(Control named) : control(named) {}

  Control control;
  bool stopped = false;  // it ended main; else it refused something
  uint64_t limit = 0, observed = 0;
  bool shared = false;
  std::vector<Evidence> evidence;
  std::string note;
};

// In no order of importance; a control may have more than one.
std::vector<Finding> findAll(const Facts& facts);

// How main ended, as the agent told.
bool diedOf(const Facts& facts, int signal);
bool exitedZero(const Facts& facts);

}  // namespace cordon::verdict
