// Asking the program of oci/inside.cc, and reading what it answers.
#pragma once
#include <kj/io.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace cordon::runtimes {

inline std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::string fileText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string linkText(const std::string& path) {
  char target[256];
  ssize_t length = readlink(path.c_str(), target, sizeof target);
  return length < 0 ? "" : std::string(target, static_cast<size_t>(length));
}

inline bool waitReadable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 20'000) == 1;
}

// A stream to the program inside.
class Stream {
 public:
  explicit Stream(kj::AutoCloseFd fd) : fd_(kj::mv(fd)) {}
  bool ready() {
    char byte = 0;
    return waitReadable(fd_) && read(fd_, &byte, 1) == 1 && byte == 'R';
  }
  std::string ask(const std::string& line) {
    std::string request = line + "\n";
    if (write(fd_, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
      return "!write";
    }
    uint32_t length = 0;
    std::string text(readAll(&length, sizeof length) ? length : 0, '\0');
    return readAll(text.data(), text.size()) ? text : "!read";
  }

 private:
  bool readAll(void* to, size_t bytes) {
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
      if (!waitReadable(fd_)) return false;
      ssize_t got = read(fd_, at, bytes);
      if (got <= 0) return false;
      at += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  kj::AutoCloseFd fd_;
};

inline std::string field(const std::string& status, const std::string& name) {
  for (const std::string& line : linesOf(status)) {
    if (line.compare(0, name.size() + 1, name + ":") == 0) {
      size_t begin = line.find_first_not_of(" \t", name.size() + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "(none)";
}

struct MountLine {
  std::string point, options, type;
  bool has(const std::string& option) const {
    return ("," + options + ",").find("," + option + ",") != std::string::npos;
  }
};

inline std::vector<MountLine> mountsOf(const std::string& mountinfo) {
  std::vector<MountLine> mounts;
  for (const std::string& line : linesOf(mountinfo)) {
    std::istringstream words(line);
    std::string id, parent, device, root, word;
    MountLine mount;
    words >> id >> parent >> device >> root >> mount.point >> mount.options;
    while (words >> word && word != "-") {
    }
    words >> mount.type;
    mounts.push_back(mount);
  }
  return mounts;
}

}  // namespace cordon::runtimes
