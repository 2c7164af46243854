// What the programs and the predicates have to agree on besides the grammar.
#pragma once

namespace cordon::escape_programs {

// The error of an attempt in a child that died by signal N is this plus N.
constexpr int kDiedBySignal = 1000;

}  // namespace cordon::escape_programs
