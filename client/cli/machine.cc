// SPDX-License-Identifier: Apache-2.0
#include "client/cli/machine.h"

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/memory_room.h"
#include "base/text.h"
#include "base/units.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "kernels/backend.h"
#include "kernels/runtime.h"
#include "transport/local/region.h"
#include "transport/ucx_module.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kProcFileBytesMax = 64 * kKiB;
constexpr uint64_t kRegionBytes = 1 * kMiB;
constexpr uint64_t kOpenFilesMin = 4096;

// Returns the text without surrounding blanks; empty if it cannot be read.
std::string TextOf(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadFile(path, kProcFileBytesMax).value_or("")));
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename());
  }
  return names;
}

}  // namespace

Finding CheckProcessor() {
  const codecs::Backend* backend = nullptr;
  if (codecs::ActiveBackend(&backend) != codecs::Error::kOk) {
    return {"processor", Verdict::kFail, codecs::RefusedChoice(), "unset the variable"};
  }
  const std::string found = absl::StrCat("codecs ", ToAbsl(backend->name), ", checksums ",
                                         codecs::ActiveCrc32cForm().name);
  for (const codecs::BackendFault& fault : codecs::BackendFaults()) {
    return {"processor", Verdict::kFail,
            absl::StrCat(found, "; ", ToAbsl(fault.backend->name), " fails its self-test at ",
                         fault.operation),
            "the processor or its memory is faulty: do not use this machine"};
  }
  if (backend == &codecs::ReferenceBackend()) {
    return {"processor", Verdict::kWarn, found,
            "a processor with AVX2 or AVX-512 encodes and decodes many times faster"};
  }
  return {"processor", Verdict::kOk, found, ""};
}

Finding CheckMemory(const std::string& root) {
  const std::string info = TextOf(root + "/proc/meminfo");
  const uint64_t free_bytes = NumberOf(info, "MemAvailable:") * kKiB;
  std::string found = absl::StrCat(FormatBytes(free_bytes), " free of ",
                                   FormatBytes(NumberOf(info, "MemTotal:") * kKiB));
  if (const MemoryRoom room = FindMemoryRoom(root); room.cgroup_limit_bytes != UINT64_MAX) {
    absl::StrAppend(&found, ", the container's limit is ", FormatBytes(room.cgroup_limit_bytes));
  }
  return {"memory", Verdict::kOk, found, ""};
}

Finding CheckHugePages(const std::string& root) {
  const std::string info = TextOf(root + "/proc/meminfo");
  const uint64_t page_bytes = NumberOf(info, "Hugepagesize:") * kKiB;
  const uint64_t all = NumberOf(info, "HugePages_Total:") * page_bytes;
  const std::string transparent = TextOf(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string limit = TextOf(root + "/sys/fs/cgroup/hugetlb.2MB.max");
  const bool is_refused = limit == "0";
  if (all > 0 && !is_refused) {
    return {"huge pages", Verdict::kOk,
            absl::StrCat(FormatBytes(NumberOf(info, "HugePages_Free:") * page_bytes), " free of ",
                         FormatBytes(all), " reserved"),
            ""};
  }
  const std::string found = absl::StrCat(
      is_refused && all > 0 ? "reserved, but the container may use none" : "none reserved",
      ", transparent ones: ", transparent.empty() ? "not there" : transparent);
  if (transparent.empty() || absl::StrContains(transparent, "[never]")) {
    return {"huge pages", Verdict::kWarn, found,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or reserve some with "
            "vm.nr_hugepages: reads are up to twice as fast"};
  }
  return {"huge pages", Verdict::kOk, found, ""};
}

Finding CheckLockedMemory(uint64_t limit_bytes) {
  if (limit_bytes == RLIM_INFINITY) return {"locked memory", Verdict::kOk, "no limit", ""};
  return {"locked memory", Verdict::kWarn, absl::StrCat("at most ", FormatBytes(limit_bytes)),
          "io_uring and UCX register memory: ulimit -l unlimited, or "
          "LimitMEMLOCK=infinity in the unit"};
}

Finding CheckOpenFiles(uint64_t limit) {
  const std::string found = absl::StrCat("at most ", limit);
  return limit >= kOpenFilesMin
             ? Finding{"open files", Verdict::kOk, found, ""}
             : Finding{"open files", Verdict::kWarn, found,
                       "a client needs three to ten: ulimit -Hn 65536, or LimitNOFILE=65536"};
}

Finding CheckSharedMemory() {
  const auto region = transport::ClientRegion::Make(kRegionBytes);
  if (region.ok()) return {"shared memory", Verdict::kOk, "memfds can be created and sealed", ""};
  return {"shared memory", Verdict::kFail, std::string(region.status().message()),
          "local clients need it: allow memfd_create and fcntl in the seccomp profile, and raise "
          "the memory limit"};
}

Finding CheckIoUring(const std::string& root) {
  io_uring_params parameters{};
  const long made = ::syscall(__NR_io_uring_setup, 2, &parameters);
  int error = made < 0 ? errno : 0;
  const Fd ring(static_cast<int>(made));
  // A filter can allow the creation of a ring, but refuse its use.
  if (ring.is_valid() && ::syscall(__NR_io_uring_enter, ring.get(), 0, 0, 0, nullptr, 0) < 0) {
    error = errno;
  }
  if (error == 0) return {"io_uring", Verdict::kOk, "allowed", ""};
  const std::string disabled = TextOf(root + "/proc/sys/kernel/io_uring_disabled");
  return {"io_uring", Verdict::kWarn, absl::StrCat("refused: ", std::strerror(error)),
          disabled.empty() || disabled == "0"
              ? "the SSD tier uses threads instead; allow io_uring in the seccomp profile"
              : "the SSD tier uses threads instead; sysctl kernel.io_uring_disabled=0"};
}

Finding CheckClock(const std::string& root) {
  const std::string source =
      TextOf(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  timex state{};
  const bool is_set = ::adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  const std::string found =
      absl::StrCat("monotonic from ", source.empty() ? "an unknown source" : source,
                   is_set ? ", wall clock synchronized" : ", wall clock not synchronized");
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
    return {"clock", Verdict::kWarn, found,
            "reading it needs a system call: boot with clocksource=tsc"};
  }
  if (!is_set) {
    return {"clock", Verdict::kWarn, found, "logs of several machines do not match: run chrony"};
  }
  return {"clock", Verdict::kOk, found, ""};
}

Finding CheckUcx(const std::string& root) {
  // Set here as by a process that uses the module. Otherwise the module would log a warning.
  ::setenv("UCX_MEM_EVENTS", "n", 0);
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  const auto module = transport::LoadUcxModule();
  if (!module.ok()) {
    return {"ucx", Verdict::kWarn, std::string(module.status().message()),
            "clients on other machines need it: install libucx0 and libcairn_ucx.so"};
  }
  std::vector<std::string> active;
  const std::string folder = root + "/sys/class/infiniband";
  for (const std::string& device : NamesIn(folder)) {
    for (const std::string& port : NamesIn(absl::StrCat(folder, "/", device, "/ports"))) {
      const std::string state =
          TextOf(absl::StrCat(folder, "/", device, "/ports/", port, "/state"));
      if (absl::StrContains(state, "ACTIVE")) active.push_back(absl::StrCat(device, ":", port));
    }
  }
  return {"ucx", Verdict::kOk,
          active.empty() ? "loads, over TCP"
                         : absl::StrCat("loads, over TCP; RDMA devices are not used yet: ",
                                        absl::StrJoin(active, ", ")),
          ""};
}

std::vector<std::string> CudaDevices() {
  constexpr int kNumbersMax = 64;  // limit for device numbers
  std::vector<std::string> names;
  // A device that is too old has a number, too.
  for (int device = 0; device < kNumbersMax; ++device) {
    if (const auto opened = kernels::OpenCudaRuntime(device); opened != nullptr) {
      names.push_back(absl::StrCat(device, ": ", ToAbsl(opened->name())));
    }
  }
  return names;
}

// Never a problem: a daemon without --gpu needs no device.
Finding CheckKernels() {
  const kernels::Availability found = kernels::Probe();
  if (!found.is_available) {
    return {"gpu", Verdict::kAbsent,
            absl::StrCat("none: ", absl::StripPrefix(ToAbsl(found.reason), "unavailable: ")), ""};
  }
  return {"gpu", Verdict::kOk, absl::StrJoin(CudaDevices(), ", "), ""};
}

Finding CheckSsdFolder(const std::string& folder) {
  const std::string check = absl::StrCat("folder ", folder);
  if (const absl::Status status = CheckDirectIo(folder); !status.ok()) {
    const bool is_other_disk = absl::IsInvalidArgument(status);
    return {check, Verdict::kFail, std::string(status.message()),
            is_other_disk ? "use ext4 or xfs on a local drive"
                          : "create it, and make the daemon's user its owner"};
  }
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) {
    return {check, Verdict::kFail, std::strerror(errno), "the SSD tier needs its free space"};
  }
  return {check, Verdict::kOk,
          absl::StrCat("takes O_DIRECT, ", FormatBytes(space.f_bavail * space.f_frsize),
                       " free of ", FormatBytes(space.f_blocks * space.f_frsize)),
          ""};
}

std::vector<Finding> CheckMachine() {
  rlimit locked{}, files{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  ::getrlimit(RLIMIT_NOFILE, &files);
  return {CheckProcessor(),
          CheckMemory(""),
          CheckHugePages(""),
          CheckLockedMemory(locked.rlim_cur),
          CheckOpenFiles(files.rlim_max),
          CheckSharedMemory(),
          CheckIoUring(""),
          CheckClock(""),
          CheckUcx(""),
          CheckKernels()};
}

}  // namespace cairn::cli
