// Which sandboxes exist, and who may reach them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "broker/main/failure.h"
#include "broker/main/sandbox.h"

namespace cordon::broker {

class Registry {
 public:
  Registry(uint32_t maxSandboxes, uint32_t maxPerOwner)
      : maxSandboxes_(maxSandboxes), maxPerOwner_(maxPerOwner) {}

  // Room for one more of this owner? Sandboxes being made or destroyed count.
  kj::Maybe<Failure> admit(uint32_t owner) const;
  void insert(kj::Own<Sandbox> sandbox);
  void erase(const std::string& name) { sandboxes_.erase(name); }

  // Unknown name, another's owner and a wrong token are the same answer. One
  // that is being made or destroyed is not there either.
  kj::Maybe<Sandbox&> attach(uint32_t owner, const std::string& name, const std::string& token);
  std::vector<kj::Own<Sandbox>> all();
  // In the order of names, after that one; at most so many.
  std::vector<kj::Own<Sandbox>> of(uint32_t owner, const std::string& after, size_t most);
  bool contains(const std::string& name) const { return sandboxes_.count(name) > 0; }
  size_t size() const { return sandboxes_.size(); }

 private:
  uint32_t maxSandboxes_;
  uint32_t maxPerOwner_;
  std::map<std::string, kj::Own<Sandbox>> sandboxes_;
};

}  // namespace cordon::broker
