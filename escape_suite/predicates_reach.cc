// Reaching what is outside: networks, files, descriptors, devices.
#include <algorithm>
#include <map>

#include "escape_suite/judging.h"

namespace cordon::escape {

Judgement connectOutside(const Observation& o) {
  if (!o.outside.heard.empty()) return escaped("connected: " + join(o.outside.heard));
  if (!o.outside.listening) return inconclusive("the listeners outside do not answer");
  Judgement judgement = allRefused(o, "network");
  if (judgement.containment == Containment::kContained) {
    judgement.evidence = "nothing arrived outside; " + judgement.evidence;
    if (!o.outside.noIpv6.empty()) {
      judgement.evidence += "; IPv6 was not tried: " + o.outside.noIpv6;
    }
  }
  return judgement;
}

Judgement writeOutside(const Observation& o) {
  if (!o.outside.files.empty()) {
    constexpr size_t kNamed = 3;
    std::vector<std::string> some(
        o.outside.files.begin(),
        o.outside.files.begin() + std::min(kNamed, o.outside.files.size()));
    return escaped(std::to_string(o.outside.files.size()) + " files on the host: " + join(some) +
                   (o.outside.files.size() > kNamed ? ", ..." : ""));
  }
  if (auto problem = unusable(o)) return *problem;
  int64_t paths = o.facts.most("paths");
  if (!o.facts.has("done") || paths == 0) {
    return inconclusive("it did not finish: " + howItEnded(o.exec));
  }
  std::map<std::string, int> refused;
  int64_t inside = 0;
  for (const Fact& fact : o.facts.items) {
    if (!fact.key.starts_with("path") || fact.key == "paths") continue;
    if (fact.value == 0) {
      inside++;
    } else {
      refused[errnoName(fact.value)]++;
    }
  }
  if (inside > 0 && !o.outside.filesChecked) {
    return escaped(number(inside) + " files written in places that can't be looked at");
  }
  std::vector<std::string> parts;
  for (const auto& [error, times] : refused) parts.push_back(error + " x" + number(times));
  std::string text = "0 of " + number(paths) + " files on the host; " + join(parts);
  if (inside > 0) text += "; " + number(inside) + " in places of the sandbox's own";
  return contained("filesystem", text);
}

Judgement readShadow(const Observation& o) {
  if (o.facts.most("bytes") > 0) return escaped(number(o.facts.most("bytes")) + " bytes read");
  return allRefused(o, "filesystem");
}

Judgement netlink(const Observation& o) {
  if (o.facts.most("outside") > 0) {
    return escaped(number(o.facts.most("outside")) + " interfaces that lead outside");
  }
  return allRefused(o, "network");
}

Judgement socketScan(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("done")) return inconclusive(howItEnded(o.exec));
  if (o.facts.most("named") > 0) {
    return escaped(number(o.facts.most("named")) + " named sockets of others in sight");
  }
  if (o.facts.most("control_sockets") > 0) {
    return escaped(number(o.facts.most("control_sockets")) + " control sockets in sight");
  }
  return contained("network", "no named socket in sight");
}

Judgement devices(const Observation& o) {
  if (o.facts.most("beyond") > 0) {
    return escaped(number(o.facts.most("beyond")) + " devices beyond the basic ones");
  }
  return allRefused(o, "filesystem");
}

Judgement symlinkMaze(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("done") || o.facts.most("made") == 0) return inconclusive(howItEnded(o.exec));
  return contained("filesystem", number(o.facts.most("made")) + " traps and " +
                                     number(o.facts.most("depth")) + " levels, the agent answers");
}

Judgement inheritedFds(const Observation& o) {
  if (auto problem = unusable(o)) return *problem;
  if (!o.facts.has("examined")) return inconclusive(howItEnded(o.exec));
  std::vector<std::string> held;
  for (const char* kind :
       {"extra", "directories", "climbed", "sockets", "files", "devices", "other"}) {
    if (o.facts.most(kind) > 0) held.push_back(kind + (" " + number(o.facts.most(kind))));
  }
  if (!held.empty()) return escaped("holds " + join(held));
  return contained("files", "its three streams and nothing else among " +
                                number(o.facts.most("examined")) + " numbers");
}

}  // namespace cordon::escape
