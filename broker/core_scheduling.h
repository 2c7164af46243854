// Whether sandboxes can be kept off each other's cores (jailer/core_scheduling.h).
#pragma once
#include <string>

namespace cordon::broker {

// "" = a new sandbox can have a cookie of its own. Else why not, in a sentence.
// Asks the kernel, which costs a system call: sibling threads can be switched on
// and off at any time (/sys/devices/system/cpu/smt/control).
std::string whyNoCoreScheduling();

// Whether sibling threads are in use, of which core scheduling would be in charge.
bool smtIsOn();

// The sentence for an errno of readCoreCookie(); "" for 0.
std::string describeCoreScheduling(int error, bool smt);

}  // namespace cordon::broker
