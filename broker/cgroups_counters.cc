#include "broker/cgroups_counters.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>

namespace cordon::broker {

namespace {

// The files read here are below a page.
kj::Maybe<std::string> preadAll(int fd) {
  char buffer[4096];
  ssize_t n;
  do {
    n = pread(fd, buffer, sizeof(buffer), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return nullptr;  // ENODEV: the cgroup is gone
  return std::string(buffer, static_cast<size_t>(n));
}

}  // namespace

kj::Maybe<uint64_t> parseCounter(const std::string& text, const std::string& key) {
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const char* begin = text.data() + at;
    const char* stop = text.data() + end;
    bool match = key.empty();
    if (!match && end - at > key.size() && text.compare(at, key.size(), key) == 0 &&
        begin[key.size()] == ' ') {
      begin += key.size() + 1;
      match = true;
    }
    if (match) {
      uint64_t value = 0;
      auto [next, error] = std::from_chars(begin, stop, value);
      if (error == std::errc() && next == stop) return value;
      return nullptr;
    }
    at = end + 1;
  }
  return nullptr;
}

void CounterSet::add(const CgroupDir& dir, const char* file, const char* key, rpc::CounterKind kind,
                     rpc::Scope scope, uint64_t times, uint64_t per, const std::string& where) {
  std::string name = where + file;
  for (auto& open : files_) {
    if (open.name == name) {
      open.keys.push_back({key, kind, scope, times, per});
      return;
    }
  }
  auto opened = dir.openFile(file, O_RDONLY);
  KJ_IF_MAYBE (fd, opened) {
    File entry{name, kj::mv(*fd), {}};
    entry.keys.push_back({key, kind, scope, times, per});
    files_.push_back(kj::mv(entry));
  }
}

Counters CounterSet::read() const {
  Counters counters;
  for (auto& file : files_) {
    KJ_IF_MAYBE (text, preadAll(file.fd.get())) {
      for (auto& k : file.keys) {
        KJ_IF_MAYBE (value, parseCounter(*text, k.key)) {
          counters.push_back({k.kind, k.scope, *value * k.times / k.per,
                              k.key.empty() ? file.name : file.name + " " + k.key});
        }
      }
    }
  }
  return counters;
}

uint64_t CounterSet::value(rpc::CounterKind kind) const {
  for (auto& file : files_) {
    for (auto& k : file.keys) {
      if (k.kind != kind) continue;
      KJ_IF_MAYBE (text, preadAll(file.fd.get())) {
        KJ_IF_MAYBE (value, parseCounter(*text, k.key)) return *value * k.times / k.per;
      }
    }
  }
  return 0;
}

}  // namespace cordon::broker
