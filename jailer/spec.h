// The check of a spec, apart from where it comes from: for the jailer, the
// tests and the fuzzer.
#pragma once
#include "jailer/jail.capnp.h"

namespace cordon::jailer {

// Null when every field is in its range; else which is not. Throws kj::Exception
// where the message itself is broken.
const char* whatIsWrong(JailSpec::Reader spec);

}  // namespace cordon::jailer
