// The ledger on files: broker/records.h and broker/ids.h.
#pragma once
#include <kj/timer.h>

#include "broker/main/ledger.h"
#include "broker/main/options.h"
#include "broker/main/state_directory.h"
#include "broker/main/turn_clock.h"

namespace cordon::broker {

// For so long another broker that is at an id range is waited for. It is there
// for a few system calls, which take as long as the machine lets it wait for a
// CPU.
constexpr auto kIdsWait = 10 * kj::SECONDS;

kj::Own<Ledger> openLedger(const Options& options, const StateDirectory& state, kj::Timer& timer,
                           TurnClock& clock);

}  // namespace cordon::broker
