// The ledger on files: broker/records.h and broker/ids.h.
#pragma once
#include "broker/main/ledger.h"
#include "broker/main/options.h"
#include "broker/main/state_directory.h"

namespace cordon::broker {

kj::Own<Ledger> openLedger(const Options& options, const StateDirectory& state);

}  // namespace cordon::broker
