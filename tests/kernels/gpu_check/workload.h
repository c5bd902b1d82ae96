// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of one recipe on the device, plans that decode or encode them, and whether they did.
//
// Thread-safety: Owned by the main thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/image/image.h"
#include "codecs/side/bank.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"
#include "kernels/attend_plan.h"
#include "kernels/encode_plan.h"
#include "kernels/plan.h"
#include "tests/kernels/gpu_check/engine_cache.h"

namespace cairn::kernels {

// What recipes code with, and what is coded.
class Material {
 public:
  explicit Material(const Scale& scale);

  [[nodiscard]] codecs::ImageSpec spec() const { return spec_; }  // without a recipe
  [[nodiscard]] std::span<const std::byte> payload() const { return payload_; }
  // Of a recipe's name, which is "/basis" at its end where the profile is to have one.
  [[nodiscard]] codecs::DecodeInputs SideOf(std::string_view recipe) const;
  // Of one of these, on the device; null: there is none.
  [[nodiscard]] const std::byte* OnDevice(const codecs::DecodeInputs& side) const;

 private:
  codecs::ImageSpec spec_;
  std::vector<std::byte> payload_, profile_bytes_, basis_bytes_, bank_bytes_;
  codecs::Profile profile_, basis_;
  codecs::Bank bank_;
  Room profile_room_, basis_room_, bank_room_;
};

class Workload {
 public:
  // Encodes on the CPU, and gives the device the image as often as it is to be there.
  Workload(const Scale& scale, const Material& material, std::string_view recipe);

  [[nodiscard]] uint64_t source_bytes() const { return source_bytes_; }  // of an image
  [[nodiscard]] uint64_t image_bytes() const { return image_.size(); }
  [[nodiscard]] const codecs::ImageSpec& spec() const { return spec_; }
  // As the CPU decodes it.
  [[nodiscard]] std::span<const std::byte> payload() const { return payload_; }
  [[nodiscard]] std::vector<AttendImage> AttendImages() const;

  // Plans for all images, so many each, or as many as a plan takes.
  struct Plans {
    uint32_t batch;
    std::vector<DecodePlan> decode = {};
    std::vector<EncodePlan> encode = {};
    std::vector<Room> bytes = {}, status = {}, results = {};  // one a plan
  };
  Plans PlansOfDecode(uint32_t batch, Verify verify, const EngineCache& target) const;
  Plans PlansOfEncode(uint32_t batch, const EngineCache& source);

  static void Enqueue(const Plans& plans);

  // What is wrong, once they ran, with statuses, and with the first image and the last. Empty:
  // nothing.
  static std::string CheckStatuses(const Plans& plans);
  [[nodiscard]] std::string CheckDecoded(const EngineCache& target) const;
  [[nodiscard]] std::string CheckEncoded(const Plans& plans) const;

 private:
  // Of logquant, which keeps rows of what is young.
  [[nodiscard]] uint64_t ChainTokens() const {
    return spec_.first_position + uint64_t{64} * spec_.tokens;
  }
  [[nodiscard]] uint64_t ImageStride() const { return (image_.size() + 255) / 256 * 256; }
  [[nodiscard]] std::vector<DecodeJob> JobsOfDecode(uint32_t first, uint32_t batch,
                                                    const EngineCache& target) const;
  [[nodiscard]] std::vector<EncodeJob> JobsOfEncode(uint32_t first, uint32_t batch,
                                                    const EngineCache& source) const;
  [[nodiscard]] std::string CheckImage(uint32_t index, std::span<const TileResult> results) const;

  const Scale& scale_;
  codecs::ImageSpec spec_;
  codecs::DecodeInputs side_;
  const std::byte* side_on_device_;
  uint64_t source_bytes_ = 0, image_bytes_max_ = 0, slot_bytes_ = 0;
  std::vector<std::byte> image_, payload_;  // as the CPU encodes, and decodes that
  codecs::ImagePrefix prefix_;
  Room images_;           // to decode
  Room encoded_, slots_;  // once there were plans to encode
};

}  // namespace cairn::kernels
