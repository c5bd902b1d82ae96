// SPDX-License-Identifier: Apache-2.0
#pragma once
// The thread engine with an emulated kernel, which fails, holds or loses transfers as a test
// requests. The engine does not know that a transfer is held. So budgets fill up, deadlines pass,
// Stop() waits, and the memory of the transfer is accessed late.
//
//   auto engine = std::make_unique<FaultyIoEngine>();
//   engine->Inject({.act = FaultyIoEngine::kHold, .kind = IoKind::kRead, .file = "000003"});
//   …
//   engine->Clear();
//
// Thread-safety: Thread-safe, as IoEngine says.

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

class FaultyIoEngine final : public IoEngine {
 public:
  enum Act {
    kFail,  // fails with `error`
    kHold,  // waits until Clear(), then runs
    kLose,  // reports success, but a write does not change the file, and a read not its target
  };
  // Applies to the calls that match all fields.
  struct Fault {
    Act act = kFail;
    int error = EIO;
    std::optional<IoKind> kind = std::nullopt;
    std::string file = "";  // the end of the file's path
    uint64_t first_byte = 0, end_byte = std::numeric_limits<uint64_t>::max();  // in it
    uint64_t calls_max = std::numeric_limits<uint64_t>::max();
  };

  explicit FaultyIoEngine(const IoLimits& limits = {})
      : engine_(MakeThreadEngine(limits, [this](auto... call) { return Call(call...); })) {}
  ~FaultyIoEngine() override { Clear(); }

  // A call gets the oldest fault that applies to it.
  void Inject(Fault fault) {
    const MutexLock lock(mutex_);
    faults_.push_back(std::move(fault));
  }
  // Removes all faults. Held calls continue.
  void Clear() {
    const MutexLock lock(mutex_);
    faults_.clear();
    ++clears_;
    cleared_.NotifyAll();
  }
  uint64_t met() const {  // number of calls that got a fault
    const MutexLock lock(mutex_);
    return met_;
  }
  size_t held() const {
    const MutexLock lock(mutex_);
    return held_;
  }
  // Returns true if the last read that began there failed, and nothing was written there since.
  bool HasFailedToRead(std::string_view file, uint64_t offset) const {
    const MutexLock lock(mutex_);
    const auto found = unread_.find(file);
    return found != unread_.end() && found->second.contains(offset);
  }

  std::string_view name() const override { return engine_->name(); }
  IoId Submit(const IoTransfer& transfer, IoDone done) override {
    return engine_->Submit(transfer, std::move(done));
  }
  void Cancel(IoId id) override { engine_->Cancel(id); }
  bool Stop(absl::Time deadline) override { return engine_->Stop(deadline); }
  size_t transfer_count() const override { return engine_->transfer_count(); }
  void Report(MetricSink& sink, MetricLabels labels) const override {
    engine_->Report(sink, labels);
  }

 private:
  ssize_t Call(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset) {
    uint64_t bytes = 0;
    for (int i = 0; i < parts_count; ++i) {
      bytes += parts[i].iov_len;
    }
    const std::optional<Fault> fault = Meet(kind, fd, static_cast<uint64_t>(offset), bytes);
    if (fault.has_value() && fault->act == kFail) {
      errno = fault->error;
      return -1;
    }
    return fault.has_value() && fault->act == kLose
               ? static_cast<ssize_t>(bytes)
               : CallKernel(kind, fd, parts, parts_count, offset);
  }
  // Returns the fault of the call. Waits if it is kHold.
  std::optional<Fault> Meet(IoKind kind, int fd, uint64_t offset, uint64_t bytes) {
    std::error_code ignored;
    const std::string path =
        std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), ignored).string();
    const std::string name = path.substr(path.rfind('/') + 1);
    const MutexLock lock(mutex_);
    std::set<uint64_t>& unread = unread_[name];
    if (kind == IoKind::kWrite) {
      unread.erase(unread.lower_bound(offset), unread.lower_bound(offset + bytes));
    } else {
      unread.erase(offset);
    }
    for (Fault& fault : faults_) {
      const bool is_file =
          path.size() >= fault.file.size() &&
          path.compare(path.size() - fault.file.size(), std::string::npos, fault.file) == 0;
      if (!is_file || fault.kind.value_or(kind) != kind || offset >= fault.end_byte ||
          offset + bytes <= fault.first_byte || fault.calls_max == 0) {
        continue;
      }
      --fault.calls_max;
      ++met_;
      const Fault met = fault;
      if (met.act == kHold) {
        ++held_;
        for (const uint64_t clears = clears_; clears == clears_;) {
          cleared_.WaitUntil(mutex_, absl::InfiniteFuture());
        }
        --held_;
      } else if (met.act == kFail && kind == IoKind::kRead) {
        unread.insert(offset);
      }
      return met;
    }
    return std::nullopt;
  }

  mutable Mutex mutex_;
  CondVar cleared_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  uint64_t clears_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t met_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::set<uint64_t>, std::less<>> unread_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<IoEngine> engine_;  // last: its threads use the members above
};

}  // namespace cairn
