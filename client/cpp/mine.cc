// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/mine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/options.h"
#include "client/cpp/paged.h"
#include "client/cpp/transfer.h"
#include "codecs/mine/profile_miner.h"
#include "codecs/side/bank.h"
#include "codecs/side/bank_shape.h"
#include "codecs/types/bytes.h"
#include "proto/mine_request.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint64_t kTokensMax = std::numeric_limits<uint16_t>::max();

absl::Status CheckRates(std::span<const uint16_t> rates) {
  if (rates.size() > codecs::kProfileRatesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", rates.size(), " rates, expected 1 to ", codecs::kProfileRatesMax));
  }
  for (size_t i = 0; i < rates.size(); ++i) {
    const uint32_t least = i == 0 ? codecs::kProfileBitsMin : rates[i - 1] + 1U;
    if (rates[i] < least || rates[i] > codecs::kProfileBitsMax) {
      return absl::InvalidArgumentError(absl::StrCat("rates[", i, "] is ", rates[i], ", expected ",
                                                     least, " to ", codecs::kProfileBitsMax,
                                                     " tenths of a bit, ascending"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSquares(std::span<const float> squares, const codecs::GroupShape& group) {
  const uint64_t channels = uint64_t{group.layers} * group.heads * group.tile.k_dim;
  if (!squares.empty() && squares.size() != channels) {
    return absl::InvalidArgumentError(absl::StrCat("query_squares has ", squares.size(),
                                                   " numbers, expected ", channels,
                                                   ": one a channel of K"));
  }
  for (size_t i = 0; i < squares.size(); ++i) {
    if (!(squares[i] >= 0) || !std::isfinite(squares[i])) {
      return absl::InvalidArgumentError(absl::StrCat("query_squares[", i, "] is ", squares[i],
                                                     ", expected a number that is not negative"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

class DeviceMiner::Impl {
 public:
  Impl(Space& space, kernels::Runtime& device) : space_(space), device_(device), calls_(device) {}

  absl::StatusOr<Bytes> MineBank(const DeviceSample& sample, uint32_t patterns) {
    CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, Begin(sample));
    if (patterns < 1 || patterns > codecs::kBankPatternsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("patterns is ", patterns, ", expected 1 to ", codecs::kBankPatternsMax));
    }
    kernels::MineJob job{.sample = SampleOf(sample, placed), .patterns = patterns};
    const codecs::BankShape shape = kernels::BankShapeOf(job);
    CAIRN_RETURN_IF_ERROR(FromCodec(codecs::Validate(shape), "a bank of the group"));
    LeaveFirstOut(sample);
    const uint64_t bank_bytes = codecs::BankBytes(shape);
    const uint32_t heads = shape.layers * shape.heads * codecs::BankPlanes(shape);
    CAIRN_RETURN_IF_ERROR(Reserve(kernels::MinePlanBytes(heads), bank_bytes));
    job.bank = made_.data();
    job.sample.view.pages = PagesOnDevice();
    kernels::MinePlan plan;
    CAIRN_RETURN_IF_ERROR(FromCodec(kernels::MakeMinePlan(job, PlanRoom(), &plan), "cache"));
    CAIRN_RETURN_IF_ERROR(scratch_.Grow(calls_, /*is_host=*/false, plan.scratch_bytes));
    CAIRN_RETURN_IF_ERROR(Upload(plan.bytes));
    CAIRN_RETURN_IF_ERROR(calls_.Took(device_.Mine(plan, inputs_.data() + plan_at_, scratch_.data(),
                                                   StatusOnDevice(), calls_.stream())));
    CAIRN_RETURN_IF_ERROR(Download(bank_bytes));
    Bytes bank(made_on_host_.data(), made_on_host_.data() + bank_bytes);
    codecs::WriteBankFrame(shape, bank);
    return bank;
  }

  absl::StatusOr<Bytes> MineProfile(const DeviceSample& sample, const ProfileOptions& options) {
    CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, Begin(sample));
    codecs::Recipe recipe;
    CAIRN_CHECK(codecs::ParsePolicyRecipe(space_.recipe(), &recipe) == codecs::Error::kOk);
    codecs::MineRequest request = proto::MineRequestOf(space_.identity(), sample.group, recipe);
    CAIRN_RETURN_IF_ERROR(CheckRates(options.rates));
    CAIRN_RETURN_IF_ERROR(CheckSquares(options.query_squares, request.group));
    if (!options.rates.empty()) {
      request.rates.assign(options.rates.begin(), options.rates.end());
    }
    request.query_squares.assign(options.query_squares.begin(), options.query_squares.end());
    CAIRN_RETURN_IF_ERROR(FromCodec(codecs::Validate(request), "a profile of the group"));
    codecs::ProfileMiner miner(std::move(request));
    const std::vector<kernels::SampleRun> runs = RunsOf(sample);
    while (miner.NeedsPass()) {
      kernels::MinePassJob job{.sample = SampleOf(sample, placed),
                               .runs = runs,
                               .pairs = miner.pairs(),
                               .turns = miner.request().turns,
                               .pass = miner.pass()};
      CAIRN_RETURN_IF_ERROR(MakePass(job, &miner));
      miner.EndPass();
    }
    Bytes profile;
    CAIRN_RETURN_IF_ERROR(FromCodec(miner.Write(&profile), "texts"));
    return profile;
  }

 private:
  // Memory that is kept between calls, and grows. REQUIRES for growing: the work on the stream has
  // completed.
  class Kept {
   public:
    absl::Status Grow(DeviceCalls& calls, bool is_host, uint64_t bytes) {
      if (bytes <= bytes_) {
        return absl::OkStatus();
      }
      bytes_ = 0;
      memory_ = DeviceMemory();
      memory_ = DeviceMemory(calls.device(), is_host, bytes);
      if (memory_.data() == nullptr) {
        return calls.NoRoom("samples", bytes);
      }
      bytes_ = bytes;
      return absl::OkStatus();
    }
    std::byte* data() const { return memory_.data(); }

   private:
    DeviceMemory memory_;
    uint64_t bytes_ = 0;
  };

  // Checks a sample, waits for the work of earlier calls, and fills in pages_.
  absl::StatusOr<PlacedSlice> Begin(const DeviceSample& sample) {
    const absl::Duration timeout =
        sample.timeout > absl::ZeroDuration() ? sample.timeout : kDataTimeoutDefault;
    deadline_ = MonotonicNow() + timeout;
    CAIRN_RETURN_IF_ERROR(calls_.Check());
    CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, space_.Place({.group = sample.group}));
    CAIRN_RETURN_IF_ERROR(Check(sample, placed));
    CAIRN_RETURN_IF_ERROR(calls_.Await(deadline_));
    calls_.Use(sample.stream);
    pages_.clear();
    for (const DeviceText& text : sample.texts) {
      for (const int64_t block : text.blocks) {
        pages_.push_back(static_cast<int32_t>(block));
      }
    }
    return placed;
  }

  static absl::Status Check(const DeviceSample& sample, const PlacedSlice& placed) {
    const codecs::GroupKind kind = placed.tile.kind;
    if (kind != codecs::GroupKind::kKv && kind != codecs::GroupKind::kLatent) {
      return absl::InvalidArgumentError("only KV and latents can be mined; the group has neither");
    }
    CAIRN_RETURN_IF_ERROR(CheckStream(sample.stream));
    const DeviceCache& cache = sample.cache;
    if (cache.block_count < 1 || cache.block_count > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("cache.block_count is ", cache.block_count, ", expected 1 to ", INT32_MAX));
    }
    if (cache.tokens_per_block < 1 || cache.tokens_per_block > kTokensMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cache.tokens_per_block is ", cache.tokens_per_block, ", expected 1 to ", kTokensMax));
    }
    uint64_t tokens = 0;
    for (size_t i = 0; i < sample.texts.size(); ++i) {
      CAIRN_RETURN_IF_ERROR(
          Annotate(CheckTable(cache.tokens_per_block, cache.block_count, cache.tokens_per_block,
                              sample.texts[i].blocks, ViewUse::kTarget),
                   absl::StrCat("texts[", i, "]")));
      tokens += sample.texts[i].blocks.size() * uint64_t{cache.tokens_per_block};
    }
    if (tokens < 1 || tokens > kTokensMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("texts have ", tokens, " tokens, expected 1 to ", kTokensMax));
    }
    return absl::OkStatus();
  }

  kernels::MineSample SampleOf(const DeviceSample& sample, const PlacedSlice& placed) const {
    kernels::MineSample made{.tile = placed.tile,
                             .layers = placed.slice.layer_count,
                             .heads = placed.slice.head_count,
                             .view = {}};
    made.view.k = sample.cache.k;
    made.view.v = sample.cache.v;
    made.view.page_entries = static_cast<uint32_t>(pages_.size());
    made.view.page_count = static_cast<uint32_t>(sample.cache.block_count);
    made.view.page_tokens = sample.cache.tokens_per_block;
    made.tokens = static_cast<uint32_t>(pages_.size()) * sample.cache.tokens_per_block;
    return made;
  }

  // Makes holes of the blocks that contain one of the first tokens of a chain.
  void LeaveFirstOut(const DeviceSample& sample) {
    size_t first = 0;
    for (const DeviceText& text : sample.texts) {
      for (size_t i = 0; i < text.blocks.size(); ++i) {
        if (text.first_position + i * sample.cache.tokens_per_block < codecs::kTokensSkipped) {
          pages_[first + i] = static_cast<int32_t>(kBlockSkipped);
        }
      }
      first += text.blocks.size();
    }
  }

  // Returns runs of consecutive blocks that are not skipped, divided by quarters of the sample.
  std::vector<kernels::SampleRun> RunsOf(const DeviceSample& sample) const {
    const uint32_t tokens = sample.cache.tokens_per_block;
    const auto count = static_cast<size_t>(
        std::ranges::count_if(pages_, [](int32_t page) { return page != kBlockSkipped; }));
    std::vector<kernels::SampleRun> runs;
    uint32_t slot = 0;
    size_t number = 0;
    for (const DeviceText& text : sample.texts) {
      bool is_begun = false;
      for (size_t i = 0; i < text.blocks.size(); ++i, slot += tokens) {
        if (text.blocks[i] == kBlockSkipped) {
          is_begun = false;
          continue;
        }
        const auto part = static_cast<uint32_t>(number++ * codecs::kSampleParts / count);
        if (!is_begun || runs.back().part != part) {
          runs.push_back({.token_first = slot,
                          .tokens = 0,
                          .first_position = text.first_position + i * tokens,
                          .part = part});
        }
        is_begun = true;
        runs.back().tokens += tokens;
      }
    }
    return runs;
  }

  // Computes the sums of one pass over the sample's tokens.
  absl::Status MakePass(kernels::MinePassJob& job, codecs::ProfileMiner* miner) {
    if (job.runs.empty()) {
      return absl::InvalidArgumentError("texts: all of their blocks are skipped");
    }
    const uint64_t plan_bytes = kernels::MinePassPlanBytes(job);
    CAIRN_RETURN_IF_ERROR(Reserve(plan_bytes, 0));
    job.sample.view.pages = PagesOnDevice();
    kernels::MinePassPlan plan;
    CAIRN_RETURN_IF_ERROR(FromCodec(kernels::MakeMinePassPlan(job, PlanRoom(), &plan), "cache"));
    CAIRN_RETURN_IF_ERROR(Reserve(plan_bytes, plan.sums_bytes));
    CAIRN_RETURN_IF_ERROR(Upload(plan.bytes));
    CAIRN_RETURN_IF_ERROR(
        calls_.Took(device_.Clear(made_.data(), plan.sums_bytes, calls_.stream())));
    CAIRN_RETURN_IF_ERROR(calls_.Took(device_.MinePass(
        plan, inputs_.data() + plan_at_, made_.data(), StatusOnDevice(), calls_.stream())));
    CAIRN_RETURN_IF_ERROR(Download(plan.sums_bytes));
    miner->Add(kernels::SumsOf(job, plan, {made_on_host_.data(), plan.sums_bytes}));
    return absl::OkStatus();
  }

  // Reserves memory for a plan, on host and device, and for its result.
  absl::Status Reserve(uint64_t plan_bytes, uint64_t made_bytes) {
    plan_at_ = RoundUpTo(pages_.size() * sizeof(int32_t));
    plan_bytes_ = plan_bytes;
    status_at_ = plan_at_ + RoundUpTo(plan_bytes);
    const uint64_t bytes = status_at_ + sizeof(uint32_t);
    CAIRN_RETURN_IF_ERROR(inputs_.Grow(calls_, /*is_host=*/false, bytes));
    CAIRN_RETURN_IF_ERROR(inputs_on_host_.Grow(calls_, /*is_host=*/true, bytes));
    CAIRN_RETURN_IF_ERROR(made_.Grow(calls_, /*is_host=*/false, made_bytes));
    return made_on_host_.Grow(calls_, /*is_host=*/true, made_bytes);
  }
  std::span<std::byte> PlanRoom() { return {inputs_on_host_.data() + plan_at_, plan_bytes_}; }
  const int32_t* PagesOnDevice() const { return reinterpret_cast<const int32_t*>(inputs_.data()); }
  uint32_t* StatusOnDevice() const {
    return reinterpret_cast<uint32_t*>(inputs_.data() + status_at_);
  }

  // Uploads pages and plan to the device.
  absl::Status Upload(uint64_t plan_bytes) {
    std::ranges::copy(std::as_bytes(std::span(pages_)), inputs_on_host_.data());
    CAIRN_RETURN_IF_ERROR(calls_.Took(device_.CopyIn(inputs_.data(), inputs_on_host_.data(),
                                                     plan_at_ + plan_bytes, calls_.stream())));
    return calls_.Took(
        device_.Clear(inputs_.data() + status_at_, sizeof(uint32_t), calls_.stream()));
  }

  // Downloads the result, waits for it, and returns its status.
  absl::Status Download(uint64_t bytes) {
    std::byte* const status = inputs_on_host_.data() + status_at_;
    CAIRN_RETURN_IF_ERROR(
        calls_.Took(device_.CopyOut(made_on_host_.data(), made_.data(), bytes, calls_.stream())));
    CAIRN_RETURN_IF_ERROR(calls_.Took(
        device_.CopyOut(status, inputs_.data() + status_at_, sizeof(uint32_t), calls_.stream())));
    CAIRN_RETURN_IF_ERROR(calls_.Await(deadline_));
    return FromCodec(static_cast<codecs::Error>(codecs::Load<uint32_t>(status)),
                     "texts have no token to mine from");
  }

  Space& space_;
  kernels::Runtime& device_;
  std::vector<int32_t> pages_;    // blocks of all texts
  Kept inputs_, inputs_on_host_;  // pages, plan, status word
  Kept made_, made_on_host_;      // a bank, or sums
  Kept scratch_;
  uint64_t plan_at_ = 0, plan_bytes_ = 0, status_at_ = 0;
  absl::Time deadline_;
  DeviceCalls calls_;  // destroyed first: it waits for the stream, which uses the memory above
};

DeviceMiner::DeviceMiner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMiner::~DeviceMiner() = default;

std::unique_ptr<DeviceMiner> DeviceMiner::Make(Space& space, kernels::Runtime& device) {
  return std::unique_ptr<DeviceMiner>(new DeviceMiner(std::make_unique<Impl>(space, device)));
}

absl::StatusOr<Bytes> DeviceMiner::MineBank(const DeviceSample& sample, uint32_t patterns) {
  return impl_->MineBank(sample, patterns);
}

absl::StatusOr<Bytes> DeviceMiner::MineProfile(const DeviceSample& sample,
                                               const ProfileOptions& options) {
  return impl_->MineProfile(sample, options);
}

}  // namespace cairn
