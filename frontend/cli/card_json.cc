// The boundary card as JSON: the names of ipc/agent.proto.
#include "frontend/cli/render.h"

namespace cordon::cli {
namespace {

const char* sourceName(v1::Source source) {
  switch (source) {
    case v1::KERNEL:
      return "kernel";
    case v1::AGENT:
      return "agent";
    case v1::GUEST:
      return "guest";
    case v1::FRONTEND:
      return "frontend";
    case v1::BROKER:
      return "broker";
    default:
      return "unknown";  // of a newer service
  }
}

Json ownJson(v1::Own own) {
  if (own == v1::OWN_UNKNOWN) return nullptr;
  return own == v1::OWN_YES;
}

Json origin(const v1::Origin& origin) {
  Json json = {{"source", sourceName(origin.source())}, {"from", origin.from()}};
  if (!origin.missing().empty()) json["missing"] = origin.missing();
  return json;
}

// Where the facts are from, and under `name` the facts; null when not had.
template <typename Facts, typename One>
Json section(const v1::Origin& from, const char* name, const Facts& facts, One&& one) {
  Json json = origin(from);
  if (!from.missing().empty()) {
    json[name] = nullptr;
    return json;
  }
  json[name] = Json::array();
  for (auto& fact : facts) json[name].push_back(one(fact));
  return json;
}

Json profile(bool has, const v1::SeccompProfile& profile) {
  if (!has) return nullptr;
  return {{"profile", profile.name()},
          {"calls", profile.calls()},
          {"known_calls", profile.known_calls()}};
}

Json initJson(const v1::InitFacts& init) {
  Json json = section(
      init.origin(), "capabilities", init.capabilities(), [](const v1::CapabilitySet& set) -> Json {
        return {{"set", set.set()}, {"mask", set.mask()}, {"names", Json(set.names())}};
      });
  if (!init.origin().missing().empty()) return json;
  json["uids"] = Json(init.uids());
  json["gids"] = Json(init.gids());
  json["no_new_privs"] = init.no_new_privs();
  return json;
}

Json seccompJson(const v1::SeccompFilters& seccomp) {
  Json json = origin(seccomp.origin());
  json["mode"] = seccomp.mode();
  json["in_force"] = seccomp.has_in_force() ? Json(seccomp.in_force()) : Json(nullptr);
  json["of_service"] = seccomp.has_of_service() ? Json(seccomp.of_service()) : Json(nullptr);
  json["service_refused_calls"] = seccomp.service_refused_calls();
  json["agent"] = profile(seccomp.has_agent(), seccomp.agent());
  json["workload"] = profile(seccomp.has_workload(), seccomp.workload());
  json["workload_filters"] = seccomp.workload_filters();
  return json;
}

Json mapJson(const v1::IdMap& map) {
  return section(map.origin(), "lines", map.lines(), [](const v1::IdMapLine& line) -> Json {
    return {{"inside", line.inside()}, {"outside", line.outside()}, {"count", line.count()}};
  });
}

Json namespaceJson(const v1::Namespace& fact) {
  Json json = origin(fact.origin());
  json["kind"] = fact.kind();
  json["inode"] = fact.inode() == 0 ? Json(nullptr) : Json(fact.inode());
  json["service_inode"] = fact.service_inode() == 0 ? Json(nullptr) : Json(fact.service_inode());
  json["own"] = ownJson(fact.own());
  json["shown_by"] = fact.shown_by();
  return json;
}

}  // namespace

Json toJson(const v1::BoundaryCard& card) {
  if (!card.missing().empty()) return {{"missing", card.missing()}};
  Json json = {{"is_sandbox", card.is_sandbox()},
               {"runtime_version", card.runtime_version()},
               {"arguments_chosen_by", card.arguments_chosen_by()},
               {"init", initJson(card.init())},
               {"seccomp", seccompJson(card.seccomp())},
               {"uid_map", mapJson(card.uid_map())},
               {"gid_map", mapJson(card.gid_map())},
               {"namespaces", Json::array()}};
  for (auto& fact : card.namespaces()) json["namespaces"].push_back(namespaceJson(fact));
  json["mounts"] = section(
      card.mounts().origin(), "mounts", card.mounts().mounts(), [](const v1::Mount& mount) -> Json {
        return {{"where", mount.where()},   {"flags", mount.flags()}, {"type", mount.type()},
                {"source", mount.source()}, {"root", mount.root()},   {"options", mount.options()}};
      });
  json["plan"] = Json::array();
  for (auto& mount : card.plan()) {
    json["plan"].push_back(
        {{"what", mount.what()}, {"where", mount.where()}, {"flags", mount.flags()}});
  }
  json["limits"] = section(card.limits().origin(), "limits", card.limits().limits(),
                           [](const v1::CgroupLimit& limit) {
                             Json one = {{"group", limit.group()}, {"file", limit.file()}};
                             bool had = limit.missing().empty();
                             one["value"] = had ? Json(limit.value()) : Json(nullptr);
                             if (!had) one["missing"] = limit.missing();
                             return one;
                           });
  json["rlimits"] = section(card.rlimits().origin(), "limits", card.rlimits().limits(),
                            [](const v1::Rlimit& limit) -> Json {
                              return {{"name", limit.name()},
                                      {"soft", limit.soft()},
                                      {"hard", limit.hard()},
                                      {"unit", limit.unit()}};
                            });
  json["network"] = section(card.network().origin(), "interfaces", card.network().interfaces(),
                            [](const v1::Interface& interface) -> Json {
                              return {{"name", interface.name()},
                                      {"received_bytes", interface.received_bytes()},
                                      {"sent_bytes", interface.sent_bytes()}};
                            });
  auto& core = card.core_scheduling();
  json["core_scheduling"] = origin(core.origin());
  json["core_scheduling"]["cookie"] = core.cookie() == 0 ? Json(nullptr) : Json(core.cookie());
  return json;
}

}  // namespace cordon::cli
