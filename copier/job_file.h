// The job as it lies in its memfd.
#pragma once
#include <vector>

#include "copier/job.h"
#include "copier/save.h"

namespace cordon::copier {

std::vector<char> encodeJob(Job job, const std::vector<Root>& roots);
// False for what encodeJob() would not have made.
bool decodeJob(const char* bytes, size_t size, Job& job, std::vector<Root>& roots);

}  // namespace cordon::copier
