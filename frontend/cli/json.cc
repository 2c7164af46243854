#include <type_traits>

#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

Json limitsJson(const v1::Limits& limits) {
  Json json = Json::object();
  auto add = [&](const char* name, bool has, int64_t value) {
    if (has) json[name] = value;
  };
  add("memory_bytes", limits.has_memory_bytes(), limits.memory_bytes());
  add("pids", limits.has_pids(), limits.pids());
  add("cpu_millis", limits.has_cpu_millis(), limits.cpu_millis());
  add("cpu_time_ms", limits.has_cpu_time_ms(), limits.cpu_time_ms());
  add("wall_ms", limits.has_wall_ms(), limits.wall_ms());
  add("file_size_bytes", limits.has_file_size_bytes(), limits.file_size_bytes());
  add("files", limits.has_files(), limits.files());
  add("disk_bytes", limits.has_disk_bytes(), limits.disk_bytes());
  add("tmp_bytes", limits.has_tmp_bytes(), limits.tmp_bytes());
  add("root_bytes", limits.has_root_bytes(), limits.root_bytes());
  add("shm_bytes", limits.has_shm_bytes(), limits.shm_bytes());
  add("output_bytes", limits.has_output_bytes(), limits.output_bytes());
  return json;
}

Json profileJson(const v1::SeccompProfile& profile) {
  return {{"profile", profile.name()},
          {"calls", profile.calls()},
          {"known_calls", profile.known_calls()}};
}

Json itemsJson(const google::protobuf::RepeatedPtrField<v1::ReceiptItem>& items) {
  Json json = Json::array();
  for (const v1::ReceiptItem& item : items) {
    Json one = {{"kind", item.kind()}, {"name", item.name()}};
    if (item.error_number() != 0) one["errno"] = item.error_number();
    json.push_back(std::move(one));
  }
  return json;
}

void explain(const v1::Explanation& explanation, Json& json) {
  Json calls = Json::array();
  for (const v1::RefusedCall& call : explanation.refused_calls()) {
    calls.push_back({{"name", call.name()}, {"count", call.count()}});
  }
  json["refused_calls"] = std::move(calls);
  json["refused_calls_incomplete"] = explanation.incomplete();
}

}  // namespace

Json toJson(const client::Outcome& outcome) {
  const v1::Result& result = outcome.result;
  Json json;
  json["exit_code"] = result.has_exit_code() ? Json(result.exit_code()) : Json(nullptr);
  json["signal"] = result.has_signal() ? Json(result.signal()) : Json(nullptr);
  if (result.has_not_started()) {
    json["not_started"] = {{"errno", result.not_started().error_number()},
                           {"step", result.not_started().step()},
                           {"message", result.not_started().message()}};
  }
  json["sandbox"] = outcome.name;
  json["verdict"] = toJson(result.verdict());
  json["usage"] = {{"wall_ms", result.usage().wall_ms()},
                   {"cpu_user_ms", result.usage().cpu_user_ms()},
                   {"cpu_system_ms", result.usage().cpu_system_ms()},
                   {"max_rss_bytes", result.usage().max_rss_bytes()}};
  json["stdout"] = streamJson(result.stdout(), outcome.out);
  json["stderr"] = streamJson(result.stderr(), outcome.err);
  json["timings"] = {{"acquire_ms", result.timings().acquire_ms()},
                     {"exec_ms", result.timings().exec_ms()},
                     {"release_ms", result.timings().release_ms()}};
  json["left_running"] = result.left_running();
  if (result.has_explanation()) explain(result.explanation(), json);
  if (result.has_receipt()) json["receipt"] = toJson(result.receipt());
  return json;
}

Json toJson(const v1::Verdict& message) {
  verdict::Verdict verdict = fromMessage(message);
  Json json = {{"control", name(verdict.control)}, {"stopped", verdict.stopped},
               {"limit", verdict.limit},           {"observed", verdict.observed},
               {"shared", verdict.shared},         {"evidence", Json::array()},
               {"others", Json::array()},          {"note", verdict.note}};
  for (const verdict::Evidence& evidence : verdict.evidence) {
    json["evidence"].push_back({{"counter", evidence.counter},
                                {"before", evidence.before},
                                {"after", evidence.after},
                                {"source", name(evidence.source)}});
  }
  for (verdict::Control other : verdict.others) json["others"].push_back(name(other));
  return json;
}

Json toJson(const v1::Receipt& receipt) {
  return {{"complete", receipt.complete()},
          {"removed", itemsJson(receipt.removed())},
          {"left", itemsJson(receipt.left())}};
}

Json toJson(const v1::SandboxInfo& info) {
  Json json = {{"name", info.name()},
               {"runtime", info.runtime()},
               {"image", info.image()},
               {"owner_uid", info.owner_uid()},
               {"state", info.state()},
               {"created_unix_ms", info.created_unix_ms()},
               {"limits", limitsJson(info.limits())},
               {"execs_running", info.execs_running()},
               {"execs_total", info.execs_total()},
               {"counters", Json::array()},
               {"id_range_start", info.id_range_start()},
               {"ttl_left_ms", info.ttl_left_ms()},
               {"idle_ms", info.idle_ms()},
               {"isolation", info.isolation()},
               {"seccomp", info.has_seccomp() ? profileJson(info.seccomp()) : Json(nullptr)}};
  for (const v1::CounterValue& counter : info.counters()) {
    json["counters"].push_back({{"counter", counter.counter()}, {"value", counter.value()}});
  }
  if (info.has_card()) json["card"] = toJson(info.card());
  return json;
}

Json toJson(const v1::ListResponse& list) {
  Json json = {{"sandboxes", Json::array()}};
  for (const v1::SandboxInfo& info : list.sandboxes()) json["sandboxes"].push_back(toJson(info));
  return json;
}

Json toJson(const v1::SnapshotInfo& info) {
  return {{"name", info.name()},
          {"kind", info.kind()},
          {"sandbox", info.sandbox()},
          {"runtime", info.runtime()},
          {"image", info.image()},
          {"created_unix_ms", info.created_unix_ms()},
          {"limits", limitsJson(info.limits())},
          {"bytes", info.bytes()},
          {"data_bytes", info.data_bytes()},
          {"entries", info.entries()},
          {"skipped_sockets", info.skipped_sockets()},
          {"skipped_devices", info.skipped_devices()},
          {"without_xattrs", info.without_xattrs()}};
}

Json toJson(const v1::ListSnapshotsResponse& list) {
  Json json = {{"snapshots", Json::array()}};
  for (const v1::SnapshotInfo& info : list.snapshots()) json["snapshots"].push_back(toJson(info));
  return json;
}

Json toJson(const v1::RuntimesResponse& runtimes) {
  Json json = {{"runtimes", Json::array()}, {"one_trust_zone", runtimes.one_trust_zone()}};
  for (const v1::RuntimeInfo& runtime : runtimes.runtimes()) {
    Json notes = Json::array();
    for (const std::string& note : runtime.notes()) notes.push_back(note);
    json["runtimes"].push_back({{"name", runtime.name()},
                                {"available", runtime.available()},
                                {"is_default", runtime.is_default()},
                                {"is_sandbox", runtime.is_sandbox()},
                                {"version", runtime.version()},
                                {"reason", runtime.reason()},
                                {"fix", runtime.fix()},
                                {"notes", notes}});
  }
  json["seccomp_profiles"] = Json::array();
  for (const v1::SeccompProfile& profile : runtimes.seccomp_profiles()) {
    json["seccomp_profiles"].push_back(profileJson(profile));
  }
  return json;
}

Json toJson(const client::ApiError& error) {
  const v1::ErrorDetail& detail = error.detail();
  Json fields = {
      {"code", error.code()}, {"reason", error.reason()}, {"message", std::string(error.what())}};
  if (!detail.subject().empty()) fields["subject"] = detail.subject();
  if (detail.limit() != 0) fields["limit"] = detail.limit();
  if (detail.error_number() != 0) fields["errno"] = detail.error_number();
  return {{"error", fields}};
}

Json streamJson(const v1::StreamTotals& totals, const client::Collected& collected) {
  Json json = {{"total", totals.total()}, {"dropped", totals.dropped() + collected.notKept}};
  if (verdict::isUtf8(collected.bytes)) {
    json["text"] = collected.bytes;
  } else {
    json["base64"] = base64(collected.bytes);
  }
  if (collected.gapAt) json["gap_at"] = *collected.gapAt;
  return json;
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
    }
  }
  return text;
}

std::string line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

verdict::Verdict fromMessage(const v1::Verdict& message) {
  // The numbers of both are the same; a newer service's are shown as unknown.
  static_assert(int(v1::SANDBOX_LOST) == int(verdict::Control::kSandboxLost) &&
                int(v1::DISK) == int(verdict::Control::kDisk) &&
                int(v1::WALL_CLOCK) == int(verdict::Control::kWallClock) &&
                int(v1::FRONTEND) == int(verdict::Source::kFrontend));
  verdict::Verdict verdict;
  verdict.control = verdict::Control(message.control() & 0xff);
  verdict.stopped = message.stopped();
  verdict.limit = message.limit();
  verdict.observed = message.observed();
  verdict.shared = message.shared();
  for (const v1::Evidence& evidence : message.evidence()) {
    verdict.evidence.push_back({evidence.counter(), evidence.before(), evidence.after(),
                                verdict::Source(evidence.source() & 0xff)});
  }
  for (int other : message.others()) verdict.others.push_back(verdict::Control(other & 0xff));
  verdict.note = message.note();
  return verdict;
}

}  // namespace cordon::cli
