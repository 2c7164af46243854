// cordon-jailer: one new sandbox, from an immutable spec to vm-agent running
// inside. Started by cordon-broker for each sandbox of the `jail` runtime, and for
// each run of cordon-copier, whose jail is the same but empty. It reads its spec
// and its named descriptors and nothing else. docs/jailer.md is this function in
// words.
#include "jailer/steps.h"

namespace cordon::jailer {
namespace {

[[noreturn]] void run() {
  // ---- The host's root, one thread, in the host's namespaces.
  done(Step());
  // First: what was inherited by mistake must not come any further.
  closeUnnamed();
  done(Step::kDescriptors);
  // Wholly, before the first effect: a bad spec leaves nothing.
  auto spec = readSpec();
  done(Step::kSpec);
  // Before anything is allocated for the sandbox, so that it is charged to it;
  // v2 is joined at birth, in becomeInit().
  joinCgroups(spec);
  done(Step::kCgroup);
  // While we still have a /proc that names our children.
  auto prepared = prepareNamespaces(spec);
  done(Step::kUserNamespace);
  becomeInit(spec, prepared);

  // ---- Pid 1 of the sandbox, still the host's root: the namespaces belong to
  // the host, so that nothing inside can ever change what is made here.
  enterCgroupNamespace(spec);
  // sysfs shows the network namespace of whoever mounts it.
  enterNetwork(prepared);
  // In all of them, and the host's /proc still there: later nobody but the
  // sandbox can read them.
  noteNamespaces(prepared);
  done(Step::kNamespaces);
  buildRoot(spec, prepared);
  done(Step::kMounts);
  setHostname(spec);
  done(Step::kHostname);
  // After the last use of the host's tree: from here no path leads there.
  enterRoot();
  done(Step::kPivot);
  // Before it is entered, and as late as can be: it is furnished meanwhile.
  awaitFurnished(prepared);
  // Raising one needs the host's root, and this only lowers.
  setLimits(spec);
  // Pid 1's, and so that of all it will ever start. Here nobody has to be asked:
  // later the kernel tells it to nobody but who may trace the agent.
  isolateCore(spec);
  done(Step::kLimits);

  // ---- Here the host's root ends: user namespace, ids, capabilities.
  becomeUnprivileged(spec, prepared);
  closeAllButThePrograms(spec);
  done(Step::kIdentity);
  // Last: nothing above has to be in the program's list of calls.
  installFilter();
  done(Step::kFilter);
  reportDone();
  execProgram(spec);
}

}  // namespace
}  // namespace cordon::jailer

int main() {
  cordon::jailer::run();
}
