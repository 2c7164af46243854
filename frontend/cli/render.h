// Answers of the service as JSON and as text for a terminal.
//
// JSON is one line of ASCII: no byte of a sandbox can reach a terminal through
// it. Text is escaped likewise (frontend/verdict/escape.h).
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "frontend/cli/client.h"
#include "frontend/verdict/verdict.h"
#include "ipc/agent.pb.h"

namespace cordon::cli {

using Json = nlohmann::ordered_json;

// The object of `run --json` and `exec --json`.
Json toJson(const client::Outcome& outcome);
Json toJson(const v1::Verdict& verdict);
Json toJson(const v1::Receipt& receipt);
Json toJson(const v1::SandboxInfo& info);
Json toJson(const v1::BoundaryCard& card);
Json toJson(const v1::ListResponse& list);
Json toJson(const v1::SnapshotInfo& info);
Json toJson(const v1::ListSnapshotsResponse& list);
Json toJson(const v1::RuntimesResponse& runtimes);
// {"error": {...}}
Json toJson(const client::ApiError& error);

// {"total", "dropped", and "text" or "base64"}; where bytes are missing in the
// middle also "gap_at", their position in the decoded bytes.
Json streamJson(const v1::StreamTotals& totals, const client::Collected& collected);

std::string base64(std::string_view bytes);

// The text of an object, with its newline.
std::string line(const Json& json);

verdict::Verdict fromMessage(const v1::Verdict& message);

// Tables and cards, each line ended.
std::string table(const v1::ListResponse& list, int64_t nowUnixMs);
std::string table(const v1::ListSnapshotsResponse& list, int64_t nowUnixMs);
std::string table(const v1::RuntimesResponse& runtimes);
std::string card(const v1::SandboxInfo& info, int64_t nowUnixMs);
std::string text(const v1::BoundaryCard& card);
std::string text(const v1::Receipt& receipt);
std::string text(const v1::Explanation& explanation);

// "CODE, REASON: message", escaped, without a newline.
std::string text(const client::ApiError& error);

// What `cordon run` exits with for this result.
int exitStatus(const v1::Result& result);

}  // namespace cordon::cli
