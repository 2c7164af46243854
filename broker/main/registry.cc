#include "broker/main/registry.h"

#include "broker/main/identity.h"

namespace cordon::broker {

kj::Maybe<Failure> Registry::admit(uint32_t owner) const {
  uint32_t own = 0;
  for (auto& [name, sandbox] : sandboxes_) own += sandbox->entry.ownerUid == owner;
  if (sandboxes_.size() < maxSandboxes_ && own < maxPerOwner_) return nullptr;
  auto full = failure(rpc::Reason::TOO_MANY_SANDBOXES, own >= maxPerOwner_
                                                           ? "you have too many sandboxes"
                                                           : "this host has too many sandboxes");
  full.limit = own >= maxPerOwner_ ? maxPerOwner_ : maxSandboxes_;
  return full;
}

void Registry::insert(kj::Own<Sandbox> sandbox) {
  auto name = sandbox->name();
  sandboxes_[name] = kj::mv(sandbox);
}

kj::Maybe<Sandbox&> Registry::attach(uint32_t owner, const std::string& name,
                                     const std::string& token) {
  auto it = sandboxes_.find(name);
  if (it == sandboxes_.end()) return nullptr;
  Sandbox& sandbox = *it->second;
  bool there = sandbox.entry.state == rpc::SandboxState::READY ||
               sandbox.entry.state == rpc::SandboxState::LOST;
  if (!there || sandbox.entry.ownerUid != owner) return nullptr;
  if (!tokenMatches(token, sandbox.entry.tokenHash)) return nullptr;
  return sandbox;
}

std::vector<kj::Own<Sandbox>> Registry::all() {
  std::vector<kj::Own<Sandbox>> result;
  for (auto& [name, sandbox] : sandboxes_) {
    result.push_back(kj::addRef(*sandbox));
  }
  return result;
}

std::vector<kj::Own<Sandbox>> Registry::of(uint32_t owner, const std::string& after, size_t most) {
  std::vector<kj::Own<Sandbox>> result;
  for (auto it = sandboxes_.upper_bound(after); it != sandboxes_.end(); ++it) {
    if (result.size() == most) break;
    if (it->second->entry.ownerUid == owner) result.push_back(kj::addRef(*it->second));
  }
  return result;
}

}  // namespace cordon::broker
