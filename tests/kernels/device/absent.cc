// SPDX-License-Identifier: Apache-2.0
// No device, of a build without device kernels.
#include <cstdlib>

#include "kernels/backend.h"
#include "tests/kernels/device/device.h"

namespace cairn::kernels::device {

const Description& Find() {
  static const Description found{"", "", std::string(Probe().reason)};
  return found;
}

std::byte* Allocate(size_t, bool, size_t) { std::abort(); }
void Free(std::byte*) { std::abort(); }
void CopyIn(std::byte*, const void*, size_t) { std::abort(); }
void CopyOut(void*, const std::byte*, size_t) { std::abort(); }
void Fill(std::byte*, uint8_t, size_t) { std::abort(); }
void Copy(std::byte*, const std::byte*, size_t) { std::abort(); }
void SetBlocks(Blocks) { std::abort(); }
void Decode(const DecodePlan&, const std::byte*, uint32_t*, uint64_t) { std::abort(); }
void Encode(const EncodePlan&, const std::byte*, TileResult*, uint32_t*, uint64_t) { std::abort(); }
bool Attend(const AttendPlan&, const std::byte*, std::byte*, uint32_t*, uint64_t) { std::abort(); }
void Mine(const MinePlan&, const std::byte*, std::byte*, uint32_t*, uint64_t) { std::abort(); }
void MinePass(const MinePassPlan&, const std::byte*, std::byte*, uint32_t*, uint64_t) {
  std::abort();
}
std::string Finish() { std::abort(); }
double Seconds(Timed, const std::function<void()>&) { std::abort(); }

}  // namespace cairn::kernels::device
