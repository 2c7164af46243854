#include "broker/limit_text.h"

#include <array>

namespace cordon::broker {

namespace {

ParsedAmount refuse(std::string why) {
  return {0, std::move(why)};
}

bool isDigit(char c) {
  return c >= '0' && c <= '9';
}

// `value` in thousandths, so that up to three decimals are exact.
struct Number {
  uint64_t whole = 0;
  uint32_t thousandths = 0;
  bool hasFraction = false;
  std::string_view rest;
  std::string error;
};

Number takeNumber(std::string_view text) {
  Number n;
  size_t i = 0;
  for (; i < text.size() && isDigit(text[i]); ++i) {
    uint64_t digit = static_cast<uint64_t>(text[i] - '0');
    if (__builtin_mul_overflow(n.whole, uint64_t{10}, &n.whole) ||
        __builtin_add_overflow(n.whole, digit, &n.whole)) {
      n.error = "the number is too large";
      return n;
    }
  }
  if (i == 0) {
    n.error = text.empty()     ? "it is empty"
              : text[0] == '-' ? "it must not be negative"
                               : "it must start with a digit";
    return n;
  }
  if (i < text.size() && text[i] == '.') {
    n.hasFraction = true;
    size_t digits = 0;
    uint32_t scale = 100;
    for (++i; i < text.size() && isDigit(text[i]); ++i, ++digits) {
      if (digits == 3) {
        n.error = "at most three decimals";
        return n;
      }
      n.thousandths += static_cast<uint32_t>(text[i] - '0') * scale;
      scale /= 10;
    }
    if (digits == 0) {
      n.error = "a digit must follow the point";
      return n;
    }
  }
  n.rest = text.substr(i);
  return n;
}

// number * unit, where the result must be whole and fit.
ParsedAmount times(const Number& n, uint64_t unit) {
  uint64_t whole, fraction, sum;
  if (__builtin_mul_overflow(n.whole, unit, &whole)) return refuse("the number is too large");
  fraction = uint64_t{n.thousandths} * unit;  // below 1000 * 3600000
  if (fraction % 1000 != 0) return refuse("it is finer than the unit it is counted in");
  if (__builtin_add_overflow(whole, fraction / 1000, &sum)) {
    return refuse("the number is too large");
  }
  return {sum, ""};
}

ParsedAmount withinU32(ParsedAmount amount) {
  if (amount && amount.value > UINT32_MAX) return refuse("the number is too large");
  return amount;
}

}  // namespace

ParsedAmount parseBytes(std::string_view text) {
  Number n = takeNumber(text);
  if (!n.error.empty()) return refuse(n.error);
  if (n.hasFraction) return refuse("bytes must be a whole number");
  if (n.rest.empty()) return {n.whole, ""};
  if (n.rest.size() == 1) {
    uint64_t unit = uint64_t{1} << 10;
    for (char c : {'K', 'M', 'G', 'T'}) {
      if (n.rest[0] == c || n.rest[0] == c - 'A' + 'a') return times(n, unit);
      unit <<= 10;
    }
  }
  return refuse("the unit must be K, M, G, T or none");
}

ParsedAmount parseDuration(std::string_view text) {
  struct Unit {
    std::string_view name;
    uint64_t milliseconds;
  };
  constexpr std::array<Unit, 4> kUnits{{{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}}};
  Number n = takeNumber(text);
  if (!n.error.empty()) return refuse(n.error);
  for (auto& unit : kUnits) {
    if (n.rest == unit.name) return times(n, unit.milliseconds);
  }
  return refuse("the unit must be ms, s, m or h");
}

ParsedAmount parseCpus(std::string_view text) {
  Number n = takeNumber(text);
  if (!n.error.empty()) return refuse(n.error);
  if (!n.rest.empty()) return refuse("CPUs have no unit");
  return withinU32(times(n, 1000));
}

ParsedAmount parseCount(std::string_view text) {
  Number n = takeNumber(text);
  if (!n.error.empty()) return refuse(n.error);
  if (n.hasFraction || !n.rest.empty()) return refuse("it must be a whole number without a unit");
  return withinU32({n.whole, ""});
}

}  // namespace cordon::broker
