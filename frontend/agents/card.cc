#include "frontend/agents/card.h"

#include "frontend/agents/result.h"

namespace cordon::agents {
namespace {

v1::Source toProto(rpc::FactSource source) {
  switch (source) {
    case rpc::FactSource::KERNEL:
      return v1::KERNEL;
    case rpc::FactSource::AGENT:
      return v1::AGENT;
    case rpc::FactSource::BROKER:
      break;
  }
  return v1::BROKER;
}

v1::Own toProto(rpc::Own own) {
  switch (own) {
    case rpc::Own::YES:
      return v1::OWN_YES;
    case rpc::Own::NO:
      return v1::OWN_NO;
    case rpc::Own::UNKNOWN:
      break;
  }
  return v1::OWN_UNKNOWN;
}

void fill(rpc::Origin::Reader in, v1::Origin& out) {
  out.set_source(toProto(in.getSource()));
  out.set_from(in.getFrom());
  out.set_missing(in.getMissing());
}

void fillInit(rpc::BoundaryCard::Reader in, v1::InitFacts& out) {
  fill(in.getStatus(), *out.mutable_origin());
  for (auto id : in.getUids()) out.add_uids(id);
  for (auto id : in.getGids()) out.add_gids(id);
  out.set_no_new_privs(in.getNoNewPrivs());
  for (auto set : in.getCapabilities()) {
    auto& one = *out.add_capabilities();
    one.set_set(set.getSet());
    one.set_mask(set.getMask());
    for (auto name : set.getNames()) one.add_names(name);
  }
}

void fillSeccomp(rpc::BoundaryCard::Reader in, rpc::SeccompProfile::Reader workload,
                 v1::SeccompFilters& out) {
  out.set_mode(in.getSeccompMode());
  if (in.getFiltersCounted()) out.set_in_force(in.getInitFilters());
  fill(in.getServiceFiltersOrigin(), *out.mutable_origin());
  if (out.origin().missing().empty()) out.set_of_service(in.getServiceFilters());
  out.set_service_refused_calls(in.getServiceRefusedCalls());
  auto profile = [](rpc::SeccompProfile::Reader from, auto&& to) {
    if (from.getName().size() > 0) agents::toProto(from, *to());
  };
  profile(in.getAgentProfile(), [&] { return out.mutable_agent(); });
  profile(workload, [&] { return out.mutable_workload(); });
  out.set_workload_filters(in.getWorkloadFilters());
}

void fillMap(rpc::Origin::Reader origin, capnp::List<rpc::IdMapLine>::Reader lines,
             v1::IdMap& out) {
  fill(origin, *out.mutable_origin());
  for (auto line : lines) {
    auto& one = *out.add_lines();
    one.set_inside(line.getInside());
    one.set_outside(line.getOutside());
    one.set_count(line.getCount());
  }
}

void fillNamespaces(rpc::BoundaryCard::Reader in, v1::BoundaryCard& out) {
  for (auto fact : in.getNamespaces()) {
    auto& one = *out.add_namespaces();
    one.set_kind(fact.getKind());
    one.set_inode(fact.getInode());
    one.set_service_inode(fact.getServiceInode());
    one.set_own(toProto(fact.getOwn()));
    one.set_shown_by(fact.getShownBy());
    fill(fact.getOrigin(), *one.mutable_origin());
  }
}

void fillMounts(rpc::BoundaryCard::Reader in, v1::BoundaryCard& out) {
  fill(in.getMountsOrigin(), *out.mutable_mounts()->mutable_origin());
  for (auto mount : in.getMounts()) {
    auto& one = *out.mutable_mounts()->add_mounts();
    one.set_where(mount.getWhere());
    one.set_flags(mount.getFlags());
    one.set_type(mount.getType());
    one.set_source(mount.getSource());
    one.set_root(mount.getRoot());
    one.set_options(mount.getOptions());
  }
  for (auto mount : in.getPlan()) {
    auto& one = *out.add_plan();
    one.set_what(mount.getWhat());
    one.set_where(mount.getWhere());
    one.set_flags(mount.getFlags());
  }
}

void fillLimits(rpc::BoundaryCard::Reader in, v1::BoundaryCard& out) {
  fill(in.getLimitsOrigin(), *out.mutable_limits()->mutable_origin());
  for (auto limit : in.getLimits()) {
    auto& one = *out.mutable_limits()->add_limits();
    one.set_group(limit.getGroup());
    one.set_file(limit.getFile());
    one.set_value(limit.getValue());
    one.set_missing(limit.getMissing());
  }
  fill(in.getRlimitsOrigin(), *out.mutable_rlimits()->mutable_origin());
  for (auto limit : in.getRlimits()) {
    auto& one = *out.mutable_rlimits()->add_limits();
    one.set_name(limit.getName());
    one.set_soft(limit.getSoft());
    one.set_hard(limit.getHard());
    one.set_unit(limit.getUnit());
  }
}

void fillNetwork(rpc::BoundaryCard::Reader in, v1::Network& out) {
  fill(in.getInterfacesOrigin(), *out.mutable_origin());
  for (auto interface : in.getInterfaces()) {
    auto& one = *out.add_interfaces();
    one.set_name(interface.getName());
    one.set_received_bytes(interface.getReceivedBytes());
    one.set_sent_bytes(interface.getSentBytes());
  }
}

void fillCore(rpc::BoundaryCard::Reader in, v1::CoreScheduling& out) {
  fill(in.getCoreOrigin(), *out.mutable_origin());
  out.set_cookie(in.getCoreCookie());
}

}  // namespace

void toProto(rpc::BoundaryCard::Reader in, rpc::SeccompProfile::Reader workload,
             v1::BoundaryCard& out) {
  out.set_missing(in.getMissing());
  if (!out.missing().empty()) return;
  out.set_is_sandbox(in.getIsSandbox());
  out.set_runtime_version(in.getRuntimeVersion());
  out.set_arguments_chosen_by(in.getArgumentsChosenBy());
  fillInit(in, *out.mutable_init());
  fillSeccomp(in, workload, *out.mutable_seccomp());
  fillMap(in.getUidMapOrigin(), in.getUidMap(), *out.mutable_uid_map());
  fillMap(in.getGidMapOrigin(), in.getGidMap(), *out.mutable_gid_map());
  fillNamespaces(in, out);
  fillMounts(in, out);
  fillLimits(in, out);
  fillNetwork(in, *out.mutable_network());
  fillCore(in, *out.mutable_core_scheduling());
}

}  // namespace cordon::agents
