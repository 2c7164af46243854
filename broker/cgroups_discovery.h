// Which cgroup hierarchies this machine has, where they are mounted and where
// this process stands in them: /proc/self/mountinfo and /proc/self/cgroup.
#pragma once
#include <string>
#include <vector>

namespace cordon::broker {

struct Hierarchy {
  bool v2 = false;
  // v1: "memory" or "cpu","cpuacct" where co-mounted; "name=systemd" for a named
  // one. v2: empty (which it has is read from cgroup.controllers).
  std::vector<std::string> controllers;
  std::string mountPoint;
  std::string mountRoot;  // the part of the hierarchy that is mounted, mostly "/"
  std::string device;     // major:minor, one per hierarchy
  bool writable = true;
  // This process's cgroup as /proc/self/cgroup says; "" when it is not there.
  std::string ownPath;

  bool has(const std::string& controller) const;
  // "memory", "cpu,cpuacct", "unified".
  std::string label() const;
};

// From the texts of the two files. Each hierarchy once: where it is mounted
// several times, the mount of its root is preferred, and then the first.
std::vector<Hierarchy> parseHierarchies(const std::string& mountinfo,
                                        const std::string& selfCgroup);

// Of this process, now.
std::vector<Hierarchy> readHierarchies();

// Undoes the octal escapes of mountinfo: "a\040b" is "a b".
std::string unescapeMountinfo(const std::string& text);

}  // namespace cordon::broker
