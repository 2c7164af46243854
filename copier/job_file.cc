#include "copier/job_file.h"

#include <cstring>

namespace cordon::copier {

namespace {

struct RootHead {
  uint32_t number, length;
};
constexpr size_t kLongestPath = 1024;

}  // namespace

std::vector<char> encodeJob(Job job, const std::vector<Root>& roots) {
  std::vector<char> bytes;
  auto append = [&](const void* data, size_t size) {
    auto from = static_cast<const char*>(data);
    bytes.insert(bytes.end(), from, from + size);
  };
  job.roots = static_cast<uint32_t>(roots.size());
  append(&job, sizeof(job));
  for (auto& root : roots) {
    RootHead head{root.number, static_cast<uint32_t>(root.where.size())};
    append(&head, sizeof(head));
    append(root.where.data(), root.where.size());
  }
  return bytes;
}

bool decodeJob(const char* bytes, size_t size, Job& job, std::vector<Root>& roots) {
  if (size < sizeof(job)) return false;
  memcpy(&job, bytes, sizeof(job));
  bytes += sizeof(job);
  size -= sizeof(job);
  if (job.magic != kJobMagic || job.roots > kMostRoots) return false;
  if (job.task != Task::kSave && job.task != Task::kRestore) return false;
  for (uint32_t i = 0; i < job.roots; ++i) {
    RootHead head;
    if (size < sizeof(head)) return false;
    memcpy(&head, bytes, sizeof(head));
    bytes += sizeof(head);
    size -= sizeof(head);
    if (head.length > kLongestPath || head.length > size || head.number >= kMostRoots) return false;
    roots.push_back({head.number, std::string(bytes, head.length)});
    if (head.length > 0 && !isPlainPath(roots.back().where)) return false;
    bytes += head.length;
    size -= head.length;
  }
  return size == 0;
}

}  // namespace cordon::copier
