// Limits as records on disk have them.
#pragma once
#include "broker/limits.h"
#include "broker/record.capnp.h"

namespace cordon::broker {

void encodeLimits(record::Limits::Builder to, const ResolvedLimits& from);
ResolvedLimits decodeLimits(record::Limits::Reader from);

}  // namespace cordon::broker
