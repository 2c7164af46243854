// The suite's table, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "escape_suite/predicates.h"

namespace cordon::escape {

struct TableRow {
  std::string program;
  Judgement judgement;
};

struct Table {
  std::string runtime;
  std::vector<TableRow> rows;

  size_t count(Containment containment) const;
  // 0 when every row is contained, and there is one; else 1.
  int exitStatus() const;
};

// Aligned columns program, outcome, control, evidence, and a line with the
// counts. Only printable ASCII: everything else is escaped.
std::string asText(const Table& table);
// {"runtime":..., "contained":n, "escaped":n, "inconclusive":n,
//  "rows":[{"program":..., "outcome":..., "control":..., "evidence":...}]}
std::string asJson(const Table& table);

// Printable ASCII is kept, other bytes become \xNN.
std::string printable(std::string_view bytes);

}  // namespace cordon::escape
