// SPDX-License-Identifier: Apache-2.0
#include "codecs/types/error.h"

namespace cairn::codecs {

std::string_view Name(Error error) {
  switch (error) {
    case Error::kOk:
      return "ok";
    case Error::kInvalidShape:
      return "invalid shape";
    case Error::kInvalidSlice:
      return "invalid slice";
    case Error::kTooLarge:
      return "too large";
    case Error::kSourceSize:
      return "wrong source size";
    case Error::kTargetTooSmall:
      return "target too small";
    case Error::kUnknownRecipe:
      return "unknown recipe";
    case Error::kUnknownBackend:
      return "unknown backend";
    case Error::kNoSuchCpu:
      return "backend not supported by this CPU";
    case Error::kBackendFault:
      return "backend failed its self-test";
    case Error::kMismatch:
      return "images do not belong together";
    case Error::kIncomplete:
      return "images do not cover the slice";
    case Error::kNotDemotable:
      return "recipe does not nest in the image's";
    case Error::kNoBank:
      return "no fitting bank";
    case Error::kNoProfile:
      return "no fitting profile";
    case Error::kTruncated:
      return "truncated";
    case Error::kBadMagic:
      return "bad magic";
    case Error::kBadVersion:
      return "unknown version";
    case Error::kBadFlags:
      return "unknown flags";
    case Error::kUnknownUnit:
      return "unknown coding unit";
    case Error::kBadHeader:
      return "bad header";
    case Error::kBadDirectory:
      return "bad directory";
    case Error::kBadPadding:
      return "bad padding";
    case Error::kBadChecksum:
      return "bad checksum";
    case Error::kBadTile:
      return "bad tile";
    case Error::kBadBank:
      return "bad bank";
    case Error::kBadProfile:
      return "bad profile";
  }
  return "unknown error";
}

}  // namespace cairn::codecs
