// The boundary card for a terminal: a line for each fact, its source in brackets
// unless it is the kernel's.

#include "frontend/cli/render.h"
#include "frontend/cli/text.h"

namespace cordon::cli {
namespace {

class Lines {
 public:
  void add(const std::string& label, std::string text) {
    rows_.push_back({label == last_ ? "" : label, std::move(text)});
    last_ = label;
  }

  // What could not be read back says so; nothing of the request stands in for it.
  bool had(const std::string& label, const v1::Origin& origin) {
    if (origin.missing().empty()) return true;
    add(label, "not known: " + origin.missing());
    return false;
  }

  std::string text() && { return columns(std::move(rows_)); }

 private:
  std::vector<Row> rows_;
  std::string last_;
};

constexpr char kOfBroker[] = " [broker]";

std::string joined(const google::protobuf::RepeatedPtrField<std::string>& words) {
  std::string text;
  for (auto& word : words) text += (text.empty() ? "" : " ") + word;
  return text.empty() ? "none" : text;
}

std::string ids(const google::protobuf::RepeatedField<uint32_t>& ids) {
  std::string text;
  bool same = true;
  for (auto id : ids) {
    same = same && id == ids[0];
    text += (text.empty() ? "" : "/") + std::to_string(id);
  }
  return same && !ids.empty() ? std::to_string(ids[0]) : text;
}

void addInit(Lines& lines, const v1::InitFacts& init) {
  if (!lines.had("init", init.origin())) return;
  lines.add("init", "uid " + ids(init.uids()) + ", gid " + ids(init.gids()) + " on the host");
  lines.add("no new privs", init.no_new_privs() ? "yes" : "NO");
  for (auto& set : init.capabilities()) {
    lines.add("capabilities", set.set() + ": " + joined(set.names()));
  }
}

std::string calls(const v1::SeccompProfile& profile) {
  return std::to_string(profile.calls()) + " of " + std::to_string(profile.known_calls()) +
         " calls pass";
}

void addSeccomp(Lines& lines, const v1::BoundaryCard& card) {
  auto& seccomp = card.seccomp();
  if (seccomp.has_workload()) {
    lines.add("seccomp", "programs: profile " + seccomp.workload().name() + ", " +
                             calls(seccomp.workload()) + kOfBroker);
  } else {
    lines.add("seccomp", "programs: no profile");
  }
  if (seccomp.has_agent()) {
    lines.add("seccomp", "agent's own filter: " + calls(seccomp.agent()) + kOfBroker);
  }
  if (card.init().origin().missing().empty() && seccomp.has_in_force()) {
    lines.add("seccomp", "filters in force on the init: " + std::to_string(seccomp.in_force()));
  } else {
    lines.add("seccomp", "filters in force on the init: not known");
  }
  if (lines.had("seccomp", seccomp.origin())) {
    std::string refused = std::to_string(seccomp.service_refused_calls());
    lines.add("seccomp", "of these the service's own: " + std::to_string(seccomp.of_service()) +
                             ", which refuses " + refused + " calls" + kOfBroker);
  }
}

void addMap(Lines& lines, const char* label, const v1::IdMap& map) {
  if (!lines.had(label, map.origin())) return;
  for (auto& line : map.lines()) {
    lines.add(label, std::to_string(line.inside()) + " inside is " +
                         std::to_string(line.outside()) + " on the host, " +
                         std::to_string(line.count()) + " in all");
  }
}

void addNamespaces(Lines& lines, const v1::BoundaryCard& card) {
  for (auto& fact : card.namespaces()) {
    std::string text = fact.kind() + ": ";
    text += fact.own() == v1::OWN_YES  ? "its own"
            : fact.own() == v1::OWN_NO ? "THE SERVICE'S"
                                       : "not known whether its own";
    if (fact.inode() != 0) {
      text += ", inode " + std::to_string(fact.inode());
      if (fact.service_inode() != 0) {
        text += " (the service's: " + std::to_string(fact.service_inode()) + ")";
      }
    } else if (!fact.shown_by().empty()) {
      text += ", inode not readable; " + fact.shown_by();
    } else {
      text += ", inode not readable";
    }
    lines.add("namespaces", text);
  }
  for (auto& fact : card.namespaces()) {
    if (fact.origin().missing().empty()) continue;
    lines.add("namespaces", "inode not readable: " + fact.origin().missing());
    break;
  }
}

void addMounts(Lines& lines, const v1::BoundaryCard& card) {
  if (lines.had("mounts", card.mounts().origin())) {
    for (auto& mount : card.mounts().mounts()) {
      std::string part = mount.root() == "/" ? "" : "[" + mount.root() + "]";
      lines.add("mounts", mount.where() + "  " + mount.type() + part + "  " + mount.flags() +
                              "  (" + mount.options() + ")");
    }
  }
  for (auto& mount : card.plan()) {
    lines.add("mount plan" + std::string(kOfBroker),
              mount.where() + "  " + mount.what() + "  " + mount.flags());
  }
}

void addLimits(Lines& lines, const v1::BoundaryCard& card) {
  if (lines.had("cgroup limits", card.limits().origin())) {
    for (auto& limit : card.limits().limits()) {
      bool had = limit.missing().empty();
      lines.add("cgroup limits", limit.group() + " " + limit.file() + ": " +
                                     (had ? limit.value() : "not known: " + limit.missing()));
    }
  }
  if (lines.had("rlimits", card.rlimits().origin())) {
    for (auto& limit : card.rlimits().limits()) {
      std::string unit = limit.unit().empty() ? "" : " " + limit.unit();
      std::string most = limit.soft() == limit.hard() ? "" : ", at most " + limit.hard();
      lines.add("rlimits", limit.name() + ": " + limit.soft() + most + unit);
    }
  }
}

void addNetwork(Lines& lines, const v1::Network& network) {
  if (!lines.had("network", network.origin())) return;
  for (auto& interface : network.interfaces()) {
    lines.add("network", interface.name() + ": received " +
                             std::to_string(interface.received_bytes()) + ", sent " +
                             std::to_string(interface.sent_bytes()) + " bytes");
  }
  if (network.interfaces().empty()) lines.add("network", "no interface");
}

void addCore(Lines& lines, const v1::CoreScheduling& core) {
  auto& missing = core.origin().missing();
  lines.add("core scheduling", missing.empty()
                                   ? "threads of a core run no other sandbox beside it, cookie " +
                                         std::to_string(core.cookie())
                                   : "not in force: " + missing);
}

}  // namespace

std::string text(const v1::BoundaryCard& card) {
  Lines lines;
  if (!card.missing().empty()) {
    lines.add("boundary", "not known: " + card.missing());
    return std::move(lines).text();
  }
  if (!card.is_sandbox()) {
    lines.add("boundary",
              "NONE. This is not a sandbox: its programs are processes of the service's own user,");
    lines.add("boundary",
              "with no namespace, cgroup, seccomp filter, capability bound or mount of their own.");
  }
  lines.add("runtime version", card.runtime_version() + kOfBroker);
  lines.add("arguments", "of system calls are chosen by " + card.arguments_chosen_by() + kOfBroker);
  addInit(lines, card.init());
  addSeccomp(lines, card);
  addMap(lines, "uid map", card.uid_map());
  addMap(lines, "gid map", card.gid_map());
  addNamespaces(lines, card);
  addMounts(lines, card);
  addLimits(lines, card);
  addNetwork(lines, card.network());
  addCore(lines, card.core_scheduling());
  return std::move(lines).text();
}

}  // namespace cordon::cli
