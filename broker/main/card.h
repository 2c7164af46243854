// The boundary card: what a sandbox is made of, read back from the kernel
// (docs/card.md).
#pragma once
#include "broker/main/sandbox.h"
#include "broker/main/services.h"

namespace cordon::broker {

// About half a millisecond: a dozen small files. A sandbox whose init has ended,
// also while it was looked at, has no card, and the card says so.
void writeCard(rpc::BoundaryCard::Builder out, Sandbox& sandbox, Services& services);

}  // namespace cordon::broker
