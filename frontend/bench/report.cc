// A report as JSON and as a table for people.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "frontend/bench/bench.h"

namespace cordon::bench {

namespace {

// Three significant digits are more than such a measurement is worth.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  double scale = std::pow(10.0, 3 - std::ceil(std::log10(std::fabs(value))));
  return scale < 1 ? std::round(value) : std::round(value * scale) / scale;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", rounded(value));
  return text;
}

std::string optionalNumber(const std::optional<double>& value) {
  return value ? number(*value) : "-";
}

std::string verdict(const Row& row) {
  if (!row.met) return "";
  return *row.met ? "met" : "MISSED";
}

}  // namespace

std::string asJson(const Report& report) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const Row& row : report.rows) {
    Json entry{{"name", row.name}, {"unit", row.unit}, {"n", row.n}};
    entry["p50"] = row.n ? Json(rounded(row.p50)) : Json();
    entry["p99"] = row.n ? Json(rounded(row.p99)) : Json();
    entry["baseline"] = row.baseline ? Json(rounded(*row.baseline)) : Json();
    entry["ratio"] = row.ratio ? Json(rounded(*row.ratio)) : Json();
    if (!row.baselineName.empty()) entry["baseline_name"] = row.baselineName;
    if (!row.target.empty()) entry["target"] = row.target;
    if (row.met) entry["met"] = *row.met;
    if (!row.note.empty()) entry["note"] = row.note;
    rows.push_back(std::move(entry));
  }
  Json document{{"machine",
                 {{"cpu", report.machine.cpu},
                  {"cpus", report.machine.cpus},
                  {"memory_bytes", report.machine.memoryBytes},
                  {"kernel", report.machine.kernel},
                  {"runc", report.machine.runc}}},
                {"rows", std::move(rows)}};
  return document.dump(2) + "\n";
}

std::string asTable(const Report& report) {
  std::vector<std::vector<std::string>> lines{
      {"row", "unit", "n", "p50", "p99", "baseline", "ratio", "target", ""}};
  for (const Row& row : report.rows) {
    std::string baseline = optionalNumber(row.baseline);
    if (!row.baselineName.empty()) baseline += " (" + row.baselineName + ")";
    lines.push_back({row.name, row.unit, std::to_string(row.n), row.n ? number(row.p50) : "-",
                     row.n ? number(row.p99) : "-", baseline, optionalNumber(row.ratio),
                     row.target.empty() ? "-" : row.target, verdict(row)});
  }
  std::vector<size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text = report.machine.cpu + ", " + std::to_string(report.machine.cpus) +
                     " CPUs, kernel " + report.machine.kernel + ", " + report.machine.runc + "\n\n";
  for (const auto& line : lines) {
    std::string out;
    for (size_t i = 0; i < line.size(); ++i) {
      out += line[i];
      out.append(widths[i] - line[i].size() + 2, ' ');
    }
    text += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  }
  for (const Row& row : report.rows) {
    if (!row.note.empty()) text += "\n" + row.name + ": " + row.note;
  }
  return text + "\n";
}

bool allMet(const Report& report) {
  return std::all_of(report.rows.begin(), report.rows.end(),
                     [](const Row& row) { return row.target.empty() || row.met.value_or(false); });
}

}  // namespace cordon::bench
