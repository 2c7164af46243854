#include "frontend/cli/text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "frontend/cli/failure.h"
#include "frontend/cli/render.h"
#include "frontend/verdict/escape.h"

namespace cordon::cli {
namespace {

// Code points stand for columns: wide enough to read, never wrong to parse.
size_t width(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string ageText(int64_t ms) {
  int64_t seconds = std::max<int64_t>(ms, 0) / 1000;
  if (seconds < 60) return std::to_string(seconds) + "s";
  if (seconds < 3600)
    return std::to_string(seconds / 60) + "m" + std::to_string(seconds % 60) + "s";
  return std::to_string(seconds / 3600) + "h" + std::to_string(seconds / 60 % 60) + "m";
}

std::string bytesText(int64_t bytes) {
  for (auto [shift, unit] : {std::pair{30, "G"}, {20, "M"}, {10, "K"}}) {
    if (bytes >= (int64_t(1) << shift) && bytes % (int64_t(1) << shift) == 0) {
      return std::to_string(bytes >> shift) + unit;
    }
  }
  return std::to_string(bytes);
}

std::string limitsText(const v1::Limits& limits) {
  std::string text;
  auto add = [&](const char* name, bool has, const std::string& value) {
    if (has && !text.empty()) text += " ";
    if (has) text += std::string(name) + "=" + value;
  };
  add("memory", limits.has_memory_bytes(), bytesText(limits.memory_bytes()));
  add("pids", limits.has_pids(), std::to_string(limits.pids()));
  add("cpu-millis", limits.has_cpu_millis(), std::to_string(limits.cpu_millis()));
  add("cpu-time", limits.has_cpu_time_ms(), std::to_string(limits.cpu_time_ms()) + "ms");
  add("wall", limits.has_wall_ms(), std::to_string(limits.wall_ms()) + "ms");
  add("file-size", limits.has_file_size_bytes(), bytesText(limits.file_size_bytes()));
  add("files", limits.has_files(), std::to_string(limits.files()));
  add("disk", limits.has_disk_bytes(), bytesText(limits.disk_bytes()));
  add("tmp", limits.has_tmp_bytes(), bytesText(limits.tmp_bytes()));
  add("shm", limits.has_shm_bytes(), bytesText(limits.shm_bytes()));
  add("writable-root", limits.has_root_bytes(), bytesText(limits.root_bytes()));
  add("output", limits.has_output_bytes(), bytesText(limits.output_bytes()));
  return text;
}

}  // namespace

std::string columns(std::vector<Row> rows) {
  std::vector<size_t> widths;
  for (Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = verdict::escapeControls(row[i]);
      widths[i] = std::max(widths[i], width(row[i]));
    }
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text += std::string(widths[i] - width(row[i]) + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

std::string table(const v1::ListResponse& list, int64_t nowUnixMs) {
  std::vector<Row> rows = {{"NAME", "RUNTIME", "STATE", "AGE", "EXECS"}};
  for (const v1::SandboxInfo& info : list.sandboxes()) {
    std::string execs = std::to_string(info.execs_total());
    if (info.execs_running() > 0)
      execs += " (" + std::to_string(info.execs_running()) + " running)";
    rows.push_back({info.name(), info.runtime(), info.state(),
                    ageText(nowUnixMs - info.created_unix_ms()), execs});
  }
  return columns(std::move(rows));
}

std::string table(const v1::ListSnapshotsResponse& list, int64_t nowUnixMs) {
  std::vector<Row> rows = {{"NAME", "OF", "IMAGE", "AGE", "BYTES", "ENTRIES"}};
  for (const v1::SnapshotInfo& info : list.snapshots()) {
    rows.push_back({info.name(), info.sandbox(), info.image(),
                    ageText(nowUnixMs - info.created_unix_ms()), std::to_string(info.bytes()),
                    std::to_string(info.entries())});
  }
  return columns(std::move(rows));
}

std::string table(const v1::RuntimesResponse& runtimes) {
  std::string text;
  if (runtimes.one_trust_zone()) {
    text +=
        "This instance is one trust zone: programs run under the service's own user, and `host` "
        "is no sandbox.\n";
  }
  std::vector<Row> rows = {{"NAME", "AVAILABLE", "VERSION", ""}};
  for (const v1::RuntimeInfo& runtime : runtimes.runtimes()) {
    std::string remark = runtime.is_default() ? "default" : "";
    if (!runtime.is_sandbox()) remark += std::string(remark.empty() ? "" : ", ") + "not a sandbox";
    rows.push_back({runtime.name(), runtime.available() ? "yes" : "no",
                    runtime.version().empty() ? "-" : runtime.version(), remark});
  }
  text += columns(std::move(rows));
  for (const v1::RuntimeInfo& runtime : runtimes.runtimes()) {
    std::string name = verdict::escapeControls(runtime.name());
    if (!runtime.reason().empty()) {
      text += name + ": " + verdict::escapeControls(runtime.reason()) + "\n";
    }
    if (!runtime.fix().empty()) {
      text += name + ": to fix it: " + verdict::escapeControls(runtime.fix()) + "\n";
    }
    for (const std::string& note : runtime.notes()) {
      text += name + ": " + verdict::escapeControls(note) + "\n";
    }
  }
  for (const v1::SeccompProfile& profile : runtimes.seccomp_profiles()) {
    text += "seccomp profile " + verdict::escapeControls(profile.name()) + ": " +
            std::to_string(profile.calls()) + " of " + std::to_string(profile.known_calls()) +
            " calls pass\n";
  }
  return text;
}

std::string card(const v1::SandboxInfo& info, int64_t nowUnixMs) {
  std::vector<Row> rows = {
      {"name", info.name()},
      {"runtime", info.runtime()},
      {"isolation", info.isolation()},
      {"image", info.image()},
      {"state", info.state()},
      {"owner uid", std::to_string(info.owner_uid())},
      {"age", ageText(nowUnixMs - info.created_unix_ms())},
      {"time to live", ageText(int64_t(info.ttl_left_ms())) + " left, " +
                           ageText(int64_t(info.idle_ms())) + " when idle"},
      {"execs", std::to_string(info.execs_running()) + " running, " +
                    std::to_string(info.execs_total()) + " in all"},
      {"limits", limitsText(info.limits())},
  };
  if (info.id_range_start() != 0) {
    rows.push_back({"host ids from", std::to_string(info.id_range_start())});
  }
  for (const v1::CounterValue& counter : info.counters()) {
    rows.push_back({counter.counter(), std::to_string(counter.value())});
  }
  std::string shown = columns(std::move(rows));
  if (info.has_card()) shown += "\n" + text(info.card());
  return shown;
}

std::string text(const v1::Receipt& receipt) {
  std::string lines;
  auto add = [&](const char* verb, const v1::ReceiptItem& item) {
    std::string line = std::string(verb) + " " + item.kind() + " " + item.name();
    if (item.error_number() != 0) line += std::string(": ") + strerror(item.error_number());
    lines += verdict::escapeControls(line) + "\n";
  };
  for (const v1::ReceiptItem& item : receipt.removed()) add("removed", item);
  for (const v1::ReceiptItem& item : receipt.left()) add("LEFT", item);
  lines += receipt.complete() ? "complete: nothing is left\n"
                              : "INCOMPLETE: what is left is recorded and retried\n";
  return lines;
}

std::string text(const v1::Explanation& explanation) {
  std::string lines = explanation.refused_calls().empty()
                          ? "cordon: the seccomp profile refused no call\n"
                          : "cordon: calls that the seccomp profile refused:\n";
  std::vector<Row> rows;
  for (const v1::RefusedCall& call : explanation.refused_calls()) {
    rows.push_back({"  " + call.name(), std::to_string(call.count())});
  }
  lines += columns(std::move(rows));
  if (!explanation.incomplete().empty()) {
    lines +=
        "cordon: this may not be all: " + verdict::escapeControls(explanation.incomplete()) + "\n";
  }
  return lines;
}

std::string text(const client::ApiError& error) {
  std::string text = error.what();
  if (!error.reason().empty() && error.reason() != client::kNotReachable) {
    text += " (" + error.code() + ", " + error.reason();
    if (!error.subject().empty()) text += ", " + error.subject();
    text += ")";
  }
  return verdict::escapeControls(text);
}

int exitStatus(const v1::Result& result) {
  if (result.has_signal()) return 128 + (result.signal() & 0x7f);
  if (result.has_exit_code()) return result.exit_code() & 0xff;
  const v1::StartFailure& failure = result.not_started();
  bool ofTheProgram = failure.step() == "lookup" || failure.step() == "exec";
  return ofTheProgram && failure.error_number() == ENOENT ? kNotFound : kNotExecutable;
}

}  // namespace cordon::cli
