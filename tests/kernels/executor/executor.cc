// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/executor/executor.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/check.h"
#include "tests/kernels/executor/fiber.h"
#include "tests/kernels/executor/memory.h"
#include "tests/kernels/executor/warp.h"

namespace cairn::kernels::emulated {
namespace {

constexpr size_t kSharedAlignment = 128;
constexpr uint32_t kThreadsMax = 1024;

// xorshift64*. Not the library's, which a linker may take from what the thread sanitizer sees.
class Random {
 public:
  using result_type = uint64_t;
  static constexpr result_type min() { return 1; }
  static constexpr result_type max() { return ~result_type{0}; }
  void Seed(uint64_t seed) { state_ = (seed + 1) * 0x9E3779B97F4A7C15 | 1; }
  result_type operator()() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D | 1;
  }

 private:
  uint64_t state_ = 1;
};

// A launch, and what is left of it for the next.
class Machine {
 public:
  Report Run(uint32_t blocks, uint32_t threads, size_t shared_bytes, Body body,
             const void* arguments, const Options& options);

  [[nodiscard]] Thread& now() { return *now_; }
  [[nodiscard]] uint32_t block() const { return block_; }
  [[nodiscard]] uint32_t blocks() const { return blocks_; }
  uint32_t Next(uint32_t below) { return static_cast<uint32_t>((random_() >> 32) * below >> 32); }

  // Ends the launch; returns to nobody.
  [[noreturn, gnu::format(printf, 2, 3)]] void Fail(const char* format, ...);
  [[noreturn]] void Stop();
  uint64_t Meet(Collective collective, uint32_t mask, uint64_t value, uint32_t argument,
                CodeLine line);
  bool Barrier(bool value, CodeLine line);
  void* SharedMemory(size_t bytes);
  void CheckShared(const void* at, size_t bytes, CodeLine line);
  void CheckGlobal(const void* at, size_t bytes, Access access, CodeLine line);
  GlobalMemory& memory() { return memory_; }

 private:
  static void Enter();
  void RunBlock(uint32_t threads, size_t shared_bytes);
  void FillShared(size_t bytes);
  void ShuffleWarps();
  Thread* Pick();
  // Goes on with another thread, or with the caller of all.
  void Yield(bool is_over = false);
  void MakeReady(Thread& thread);
  void OpenBarrier();
  [[nodiscard]] bool IsBarrierFull() const { return waiting_ != 0 && waiting_ + over_ == count_; }
  [[nodiscard]] std::string DeadlockFault() const;
  Warp& WarpOf(const Thread& thread) { return warps_[thread.index / kWarpLanes]; }

  Fiber caller_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> ranks_;  // of warps, the most urgent first
  GlobalMemory memory_;
  Thread* now_ = nullptr;
  uint32_t count_ = 0, over_ = 0, waiting_ = 0, block_ = 0, blocks_ = 0;
  uint32_t barriers_ = 0;  // that were passed
  bool barrier_value_ = false, is_skewed_ = false;
  uint8_t* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  Body body_ = nullptr;
  const void* arguments_ = nullptr;
  Report report_;
  Random random_;
  std::array<char, 2> barrier_marks_{};  // for the thread sanitizer: of barriers in turn
  char start_mark_ = 0, end_mark_ = 0;
};

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

void Machine::Fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  report_.fault = text;
  Stop();
}

void Machine::Stop() {
  Yield(true);
  std::abort();  // nobody goes on with a thread after a fault
}

void Machine::Enter() {
  Machine& machine = TheMachine();
  Acquire(&machine.start_mark_);
  machine.body_(machine.arguments_);
  Thread& self = *machine.now_;
  if (self.copies.IsAny()) machine.Fail("thread %u returns with copies under way", self.index);
  self.state = State::kOver;
  machine.WarpOf(self).returned |= 1U << self.Lane();
  ++machine.over_;
  Release(&machine.end_mark_);
  if (machine.IsBarrierFull()) machine.OpenBarrier();  // who has returned does not count
  machine.Yield(true);
}

Thread* Machine::Pick() {
  if (!report_.fault.empty()) return nullptr;
  if (Next(is_skewed_ ? 256 : 2) == 0) {
    std::swap(ranks_[0], ranks_[Next(static_cast<uint32_t>(ranks_.size()))]);
  }
  for (const uint32_t rank : ranks_) {
    std::vector<Thread*>& ready = warps_[rank].ready;
    if (ready.empty()) continue;
    const uint32_t at = Next(static_cast<uint32_t>(ready.size()));
    Thread* picked = ready[at];
    ready[at] = ready.back();
    ready.pop_back();
    return picked;
  }
  return nullptr;
}

void Machine::Yield(bool is_over) {
  Thread* from = now_;
  Thread* to = Pick();
  if (to == from) return;
  now_ = to;
  (from == nullptr ? caller_ : from->fiber).SwitchTo(to == nullptr ? caller_ : to->fiber, is_over);
}

void Machine::MakeReady(Thread& thread) {
  thread.state = State::kReady;
  Warp& warp = WarpOf(thread);
  warp.waiting &= ~(1U << thread.Lane());
  warp.ready.push_back(&thread);
}

uint64_t Machine::Meet(Collective collective, uint32_t mask, uint64_t value, uint32_t argument,
                       CodeLine line) {
  Thread& self = *now_;
  Warp& warp = WarpOf(self);
  self.at = {collective, mask, value, argument, line};
  self.state = State::kAtCollective;
  warp.waiting |= 1U << self.Lane();
  char* mark = &warp.sync_marks[warp.syncs % 2];
  if (collective == Collective::kSync) Release(mark);
  if (!warp.Complete(self, &report_.fault)) {
    if (!report_.fault.empty()) Stop();
    Yield();
  } else {
    for (Thread* lane : warp.lanes) {
      if (lane != nullptr && lane != &self && (mask >> lane->Lane() & 1) != 0) MakeReady(*lane);
    }
    self.state = State::kReady;
    warp.waiting &= ~(1U << self.Lane());
    if (Next(4) == 0) {  // the last to come does not always go first
      MakeReady(self);
      Yield();
    }
  }
  if (collective == Collective::kSync) Acquire(mark);
  return self.result;
}

void Machine::OpenBarrier() {
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    if (thread.state != State::kAtBarrier) continue;
    thread.result = barrier_value_ ? 1 : 0;
    MakeReady(thread);
  }
  waiting_ = 0;
  barrier_value_ = false;
  ++barriers_;
}

bool Machine::Barrier(bool value, CodeLine line) {
  Thread& self = *now_;
  for (uint32_t i = 0; i < count_; ++i) {
    const Thread& other = *threads_[i];
    if (other.state != State::kAtBarrier) continue;
    if (!IsSame(other.at.line, line)) {
      Fail("threads %u and %u meet at different barriers: %s:%d and %s:%d", self.index, i,
           FileOf(line), line.number, FileOf(other.at.line), other.at.line.number);
    }
    break;
  }
  self.state = State::kAtBarrier;
  self.at = {Collective::kSync, 0, 0, 0, line};
  barrier_value_ |= value;
  ++waiting_;
  const char* mark = &barrier_marks_[barriers_ % 2];
  Release(mark);
  if (IsBarrierFull()) OpenBarrier();
  Yield();
  Acquire(mark);
  return self.result != 0;
}

void* Machine::SharedMemory(size_t bytes) {
  if (bytes > shared_bytes_) {
    Fail("%zu bytes of shared memory are used, %zu were launched with", bytes, shared_bytes_);
  }
  return shared_;
}

void Machine::CheckShared(const void* at, size_t bytes, CodeLine line) {
  const auto* first = static_cast<const uint8_t*>(at);
  if (first < shared_ || first + bytes > shared_ + shared_bytes_) {
    Fail("%s:%d: %zu bytes outside shared memory, at offset %td", FileOf(line), line.number, bytes,
         first - shared_);
  }
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) {
    Fail("%s:%d: misaligned: %zu bytes of shared memory at offset %td", FileOf(line), line.number,
         bytes, first - shared_);
  }
}

void Machine::CheckGlobal(const void* at, size_t bytes, Access access, CodeLine line) {
  const char* wrong = memory_.Touch(at, bytes, access);
  if (wrong == nullptr) return;
  Fail("%s:%d: thread %u of block %u touches %zu bytes of global memory %s", FileOf(line),
       line.number, now_->index, block_, bytes, wrong);
}

void Machine::FillShared(size_t bytes) {
  shared_bytes_ = bytes;
  // The sanitizer guards what lies behind; an aligned array ends where its bytes do.
  shared_ = static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{kSharedAlignment}));
  for (size_t i = 0; i < bytes; ++i) shared_[i] = static_cast<uint8_t>(random_() >> 56);
  NoteWrite(shared_, bytes);
}

void Machine::ShuffleWarps() {
  warps_.assign(count_ / kWarpLanes, Warp{});
  for (Warp& warp : warps_) warp.ready.reserve(kWarpLanes);
  ranks_.resize(warps_.size());
  for (uint32_t i = 0; i < ranks_.size(); ++i) ranks_[i] = i;
  std::ranges::shuffle(ranks_, random_);
  is_skewed_ = Next(2) == 0;
}

std::string Machine::DeadlockFault() const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == State::kOver) continue;
    char text[256];
    std::snprintf(text, sizeof(text),
                  "deadlock: thread %u waits at %s:%d, at a %s with mask %08x; %u of %u threads "
                  "have returned",
                  i, FileOf(thread.at.line), thread.at.line.number,
                  thread.state == State::kAtBarrier ? "barrier" : "collective", thread.at.mask,
                  over_, count_);
    return text;
  }
  return {};
}

void Machine::RunBlock(uint32_t threads, size_t shared_bytes) {
  count_ = threads;
  over_ = waiting_ = 0;
  barrier_value_ = false;
  FillShared(shared_bytes);
  ShuffleWarps();
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.index = i;
    thread.copies.Clear();
    thread.fiber.Start(&Machine::Enter);
    WarpOf(thread).lanes[i % kWarpLanes] = &thread;
    MakeReady(thread);
  }
  Release(&start_mark_);
  Yield();
  Acquire(&end_mark_);
  if (report_.fault.empty() && over_ != count_) report_.fault = DeadlockFault();
  ::operator delete (shared_, std::align_val_t{kSharedAlignment});
  shared_ = nullptr;
}

Report Machine::Run(uint32_t blocks, uint32_t threads, size_t shared_bytes, Body body,
                    const void* arguments, const Options& options) {
  CAIRN_CHECK(threads <= kThreadsMax && threads % kWarpLanes == 0);
  caller_.Adopt();
  report_ = {};
  body_ = body;
  arguments_ = arguments;
  random_.Seed(options.seed);
  blocks_ = blocks;
  memory_.BeginLaunch();
  while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
  std::vector<uint32_t> order(blocks);
  for (uint32_t i = 0; i < blocks; ++i) order[i] = i;
  std::ranges::shuffle(order, random_);
  for (const uint32_t block : order) {
    block_ = block;
    RunBlock(threads, shared_bytes);
    if (!report_.fault.empty()) break;
  }
  return report_;
}

}  // namespace

uint32_t ThreadIndex() { return TheMachine().now().index; }
uint32_t BlockIndex() { return TheMachine().block(); }
uint32_t GridBlocks() { return TheMachine().blocks(); }
uint64_t Meet(Collective collective, uint32_t mask, uint64_t value, uint32_t argument,
              CodeLine line) {
  return TheMachine().Meet(collective, mask, value, argument, line);
}
bool Barrier(bool value, CodeLine line) { return TheMachine().Barrier(value, line); }
void* SharedMemory(size_t bytes) { return TheMachine().SharedMemory(bytes); }
void CheckGlobal(const void* at, size_t bytes, Access access, CodeLine line) {
  TheMachine().CheckGlobal(at, bytes, access, line);
}
void CheckShared(const void* at, size_t bytes, CodeLine line) {
  TheMachine().CheckShared(at, bytes, line);
}

void CopyAsync(void* shared, const void* global, size_t bytes, CodeLine line) {
  Machine& machine = TheMachine();
  machine.CheckShared(shared, bytes, line);
  machine.CheckGlobal(global, bytes, Access::kLoad, line);
  NoteWrite(shared, bytes);
  auto* noise = static_cast<uint8_t*>(shared);
  for (size_t i = 0; i < bytes; ++i) noise[i] = static_cast<uint8_t>(machine.Next(256));
  machine.now().copies.Add({shared, global, bytes});
}

void CopyCommit() {
  Machine& machine = TheMachine();
  if (!machine.now().copies.Commit()) machine.Fail("too many groups of copies are under way");
}

void CopyWait(uint32_t pending) { TheMachine().now().copies.Wait(pending); }

void Mma(Collective collective, void* d, const uint32_t* a, const uint32_t* b, CodeLine line) {
  MmaPart part{a, b, d};
  TheMachine().Meet(collective, kAllLanes, reinterpret_cast<uintptr_t>(&part), 0, line);
}

Report Run(uint32_t blocks, uint32_t threads, size_t shared_bytes, Body body, const void* arguments,
           const Options& options) {
  return TheMachine().Run(blocks, threads, shared_bytes, body, arguments, options);
}

Region::Region(const void* begin, size_t bytes, bool is_writable)
    : begin_(static_cast<const uint8_t*>(begin)) {
  TheMachine().memory().Add(begin_, bytes, is_writable);
}
Region::~Region() { TheMachine().memory().Remove(begin_); }

}  // namespace cairn::kernels::emulated
