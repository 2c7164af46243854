// Where this broker keeps what it builds: sandboxes' directories, skeletons of
// images, the agent that runs in sandboxes.
//
// As root, in order: processes of an earlier broker of this instance are killed,
// then a mount namespace of our own with a private tmpfs on
// /run/cordon/INSTANCE, and in it a copy of vm-agent that nobody can read or
// change. Otherwise plain directories below the state directory.
#pragma once
#include <memory>
#include <string>

#include "broker/main/options.h"
#include "broker/main/state_directory.h"
#include "broker/private_mounts.h"

namespace cordon::broker {

class Place {
 public:
  // Before the first thread, before cgroups are looked for, before hardening.
  Place(const Options& options, const StateDirectory& state);

  std::string sandboxes() const { return root_ + "/sandboxes"; }
  std::string images() const { return root_ + "/images"; }
  const std::string& vmAgent() const { return vmAgent_; }
  // errno, 0 = nothing of it is left.
  int remove();

 private:
  std::unique_ptr<PrivateMounts> mounts_;  // null without root
  std::string root_;
  std::string vmAgent_;
};

}  // namespace cordon::broker
