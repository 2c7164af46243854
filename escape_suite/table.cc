#include "escape_suite/table.h"

#include <algorithm>

namespace cordon::escape {
namespace {

bool isPlain(char c) {
  return c >= 0x20 && c < 0x7f;
}

// A JSON string of printable ASCII.
std::string jsonString(std::string_view bytes) {
  std::string text = "\"";
  for (char c : printable(bytes)) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

void pad(std::string& line, size_t width) {
  line.append(width - std::min(width, line.size()), ' ');
}

}  // namespace

std::string printable(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (char c : bytes) {
    if (isPlain(c)) {
      text += c;
    } else {
      auto byte = static_cast<unsigned char>(c);
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  return text;
}

size_t Table::count(Containment containment) const {
  return static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [&](const TableRow& row) {
    return row.judgement.containment == containment;
  }));
}

int Table::exitStatus() const {
  return !rows.empty() && count(Containment::kContained) == rows.size() ? 0 : 1;
}

std::string asText(const Table& table) {
  size_t programWidth = std::string_view("program").size();
  size_t controlWidth = std::string_view("control").size();
  const size_t outcomeWidth = std::string_view("inconclusive").size();
  for (const TableRow& row : table.rows) {
    programWidth = std::max(programWidth, row.program.size());
    controlWidth = std::max(controlWidth, row.judgement.control.size());
  }
  auto line = [&](std::string_view program, std::string_view outcome, std::string_view control,
                  std::string_view evidence) {
    std::string text = printable(program);
    pad(text, programWidth + 2);
    text += outcome;
    pad(text, programWidth + 2 + outcomeWidth + 2);
    text += printable(control);
    pad(text, programWidth + 2 + outcomeWidth + 2 + controlWidth + 2);
    return text + printable(evidence) + "\n";
  };
  std::string text = line("program", "outcome", "control", "evidence");
  for (const TableRow& row : table.rows) {
    const Judgement& judgement = row.judgement;
    text += line(row.program, name(judgement.containment), judgement.control, judgement.evidence);
  }
  return text + printable(table.runtime) + ": " +
         std::to_string(table.count(Containment::kContained)) + " contained, " +
         std::to_string(table.count(Containment::kEscaped)) + " escaped, " +
         std::to_string(table.count(Containment::kInconclusive)) + " inconclusive\n";
}

std::string asJson(const Table& table) {
  std::string text = "{\"runtime\":" + jsonString(table.runtime);
  for (Containment each :
       {Containment::kContained, Containment::kEscaped, Containment::kInconclusive}) {
    text += "," + jsonString(name(each)) + ":" + std::to_string(table.count(each));
  }
  text += ",\"rows\":[";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const TableRow& row = table.rows[i];
    text += std::string(i == 0 ? "" : ",") + "{\"program\":" + jsonString(row.program) +
            ",\"outcome\":" + jsonString(name(row.judgement.containment)) +
            ",\"control\":" + jsonString(row.judgement.control) +
            ",\"evidence\":" + jsonString(row.judgement.evidence) + "}";
  }
  return text + "]}\n";
}

}  // namespace cordon::escape
