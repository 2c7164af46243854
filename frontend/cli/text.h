// Text in columns, for a terminal.
#pragma once
#include <string>
#include <vector>

namespace cordon::cli {

using Row = std::vector<std::string>;

// Cells escaped (frontend/verdict/escape.h), columns two spaces apart, each line
// ended.
std::string columns(std::vector<Row> rows);

}  // namespace cordon::cli
