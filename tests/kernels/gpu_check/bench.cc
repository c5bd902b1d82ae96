// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu_check/bench.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "tests/kernels/gpu_check/attend_workload.h"
#include "tests/kernels/gpu_check/workload.h"

namespace cairn::kernels {
namespace {

constexpr std::string_view kRecipes[] = {"raw",           "kivi:8",
                                         "kivi:4",        "kivi:2",
                                         "kivi:2+",       "ott:2",
                                         "logquant:2",    "arkv",
                                         "arkv:paper",    "fp8",
                                         "mixkvq",        "patternkv:2",
                                         "exact",         "exact:fast",
                                         "cairn:2.3",     "cairn:2.3/basis",
                                         "cairn-hot:2.4", "cairn-hot:2.4/basis"};

// Of small tiles, and of large ones.
constexpr std::string_view kCrcRecipes[] = {"raw", "kivi:2", "exact"};

// Those with a fast kernel. The first is bf16 itself, what the others are compared with.
constexpr std::string_view kAttendedRecipes[] = {"raw", "kivi:8", "kivi:4", "kivi:2", "fp8"};

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// What is timed, and what of it says that it did its work.
struct Case {
  std::string kernels;
  uint32_t batch, taken;
  double counted_bytes, moved_bytes;
  std::function<bool()> enqueue;  // false: the device refuses it
  std::function<std::string()> check;
  std::vector<double> seconds = {}, over_copy = {};  // a round each
};

// Four sequences of 32k tokens, in few layers; or two of two small images each, in heads as wide as
// the kernels take them.
Scale AttendedScale(const Scale& scale) {
  Scale attended = scale;
  const bool is_small = scale.tokens < 128;
  attended.layers = is_small ? 1 : 4;
  attended.dim = 128;
  attended.batches = {1, is_small ? 2U : 4U};
  attended.images = attended.batches.back() * (is_small ? 2 : 256);
  return attended;
}

class Bench {
 public:
  Bench(const Scale& scale, Deadline deadline)
      : scale_(scale),
        deadline_(deadline),
        material_(scale),
        source_(scale),
        target_(scale),
        copied_{MakeRoom(scale.copy_bytes), MakeRoom(scale.copy_bytes)} {
    source_.Fill(material_.payload());
    for (const Room& room : copied_) device::Fill(room.get(), 1, scale.copy_bytes);
    measured_.fault = device::Finish();
  }

  Measured Run() {
    for (const std::string_view recipe : kRecipes) {
      if (IsToGoOn(recipe)) TimeRecipe(recipe);
    }
    for (const std::string_view recipe : kAttendedRecipes) {
      if (IsToGoOn(recipe)) TimeAttention(recipe);
    }
    if (!copies_.empty()) {
      const double rate = 2 * static_cast<double>(scale_.copy_bytes) / MedianOf(copies_);
      measured_.rows.insert(measured_.rows.begin(), {"copy", "", {{0, 0, rate, 1}}});
    }
    return std::move(measured_);
  }

 private:
  bool IsToGoOn(std::string_view recipe) {
    if (!measured_.fault.empty()) return false;
    const bool is_time = std::chrono::steady_clock::now() < deadline_;
    if (!is_time) measured_.left_out.emplace_back(recipe);
    return is_time;
  }

  void TimeAttention(std::string_view recipe) {
    const Scale scale = AttendedScale(scale_);
    const Material material(scale);
    const Workload images(scale, material, recipe);
    const AttendWorkload workload(scale, images, scale.batches.back());
    const auto all = [&](uint64_t bytes) { return static_cast<double>(bytes) * scale.images; };
    std::vector<Case> cases;
    for (uint32_t i = 0; i < scale.batches.size(); ++i) {
      auto plans = std::make_shared<AttendWorkload::Plans>(workload.PlansOf(scale.batches[i]));
      cases.push_back({"attend", scale_.batches[i], scale.batches[i], all(images.source_bytes()),
                       all(images.image_bytes()),
                       [plans] { return AttendWorkload::Enqueue(*plans); },
                       [plans, &workload] { return workload.Check(*plans); }});
    }
    TimeCases(recipe, &cases);
  }

  void TimeRecipe(std::string_view recipe) {
    Workload workload(scale_, material_, recipe);
    std::vector<Case> cases;
    for (const uint32_t batch : scale_.batches) cases.push_back(Decode(batch, &workload));
    for (const uint32_t batch : scale_.batches) cases.push_back(Encode(batch, &workload));
    if (std::ranges::find(kCrcRecipes, recipe) != std::end(kCrcRecipes)) {
      for (const uint32_t batch : scale_.batches) cases.push_back(Crcs(batch, &workload));
    }
    TimeCases(recipe, &cases);
  }

  Case Decode(uint32_t batch, Workload* workload) {
    auto plans =
        std::make_shared<Workload::Plans>(workload->PlansOfDecode(batch, Verify::kNo, target_));
    const double source = AllImages(workload->source_bytes());
    const double moved = source + AllImages(workload->image_bytes());
    const auto check = [this, plans, workload] {
      std::string wrong = Workload::CheckStatuses(*plans);
      return wrong.empty() ? workload->CheckDecoded(target_) : wrong;
    };
    return {"decode", batch, plans->batch, source, moved, [plans] { return Put(*plans); }, check};
  }

  Case Encode(uint32_t batch, Workload* workload) {
    auto plans = std::make_shared<Workload::Plans>(workload->PlansOfEncode(batch, source_));
    const double source = AllImages(workload->source_bytes());
    const double moved = source + AllImages(workload->image_bytes());
    const auto check = [plans, workload] {
      std::string wrong = Workload::CheckStatuses(*plans);
      return wrong.empty() ? workload->CheckEncoded(*plans) : wrong;
    };
    return {"encode", batch, plans->batch, source, moved, [plans] { return Put(*plans); }, check};
  }

  // Without the kernels that decode.
  Case Crcs(uint32_t batch, Workload* workload) {
    auto plans =
        std::make_shared<Workload::Plans>(workload->PlansOfDecode(batch, Verify::kYes, target_));
    constexpr auto kVerify = static_cast<uint32_t>(DecodeList::kVerify);
    for (DecodePlan& plan : plans->decode) {
      const uint32_t tiles = plan.counts[kVerify];
      plan.counts = {};
      plan.counts[kVerify] = tiles;
    }
    const double bytes = AllImages(workload->image_bytes());
    const auto check = [plans] { return Workload::CheckStatuses(*plans); };
    return {"CRC", batch, plans->batch, bytes, bytes, [plans] { return Put(*plans); }, check};
  }

  static bool Put(const Workload::Plans& plans) {
    Workload::Enqueue(plans);
    return true;
  }

  [[nodiscard]] double AllImages(uint64_t bytes) const {
    return static_cast<double>(bytes) * scale_.images;
  }

  double CopySeconds() {
    return device::Seconds(device::Timed::kAsStream, [&] {
      device::Copy(copied_[0].get(), copied_[1].get(), scale_.copy_bytes);
    });
  }

  // Each once, with a look at what it did; then rounds of the copy and all of them. What the device
  // refuses leaves *cases.
  void TimeCases(std::string_view what, std::vector<Case>* cases) {
    TryCases(what, cases);
    if (!measured_.fault.empty() || cases->empty()) return;
    for (uint32_t round = 0; round < scale_.rounds; ++round) {
      copies_.push_back(CopySeconds());
      const double copy_rate = 2 * static_cast<double>(scale_.copy_bytes) / copies_.back();
      for (Case& timed : *cases) {
        const double seconds =
            device::Seconds(device::Timed::kAsGraph, [&] { static_cast<void>(timed.enqueue()); });
        timed.seconds.push_back(seconds);
        timed.over_copy.push_back(timed.moved_bytes / seconds / copy_rate);
      }
      measured_.fault = device::Finish();
      if (!measured_.fault.empty()) return;
    }
    if (scale_.rounds == 0) return;
    for (const Case& timed : *cases) {
      std::vector<Row>& rows = measured_.rows;
      if (rows.empty() || rows.back().kernels != timed.kernels || rows.back().recipe != what) {
        rows.push_back({timed.kernels, std::string(what), {}});
      }
      rows.back().cells.push_back({timed.batch, timed.taken,
                                   timed.counted_bytes / MedianOf(timed.seconds),
                                   MedianOf(timed.over_copy)});
    }
  }

  void TryCases(std::string_view what, std::vector<Case>* cases) {
    const auto is_refused = [&](Case& tried) {
      if (!measured_.fault.empty()) return false;
      target_.Clear();
      const bool is_taken = tried.enqueue();
      measured_.fault = device::Finish();
      if (!is_taken) {
        const std::string name = tried.kernels + " " + std::string(what);
        std::vector<std::string>& refused = measured_.refused;
        if (refused.empty() || refused.back() != name) refused.push_back(name);
        return true;
      }
      if (measured_.fault.empty()) measured_.fault = tried.check();
      if (!measured_.fault.empty()) {
        measured_.fault = tried.kernels + " of " + std::string(what) + ", batches of " +
                          std::to_string(tried.taken) + ": " + measured_.fault;
      }
      return false;
    };
    std::erase_if(*cases, is_refused);
  }

  const Scale& scale_;
  Deadline deadline_;
  Material material_;
  EngineCache source_, target_;
  Room copied_[2];
  std::vector<double> copies_;  // seconds, of all rounds
  Measured measured_;
};

}  // namespace

Measured RunBench(const Scale& scale, Deadline deadline) { return Bench(scale, deadline).Run(); }

}  // namespace cairn::kernels
