// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why a codec call did not do its work. Nothing in codecs/ throws, logs or allocates on a path that
// moves payload; a caller translates these once, where it leaves the folder.

#include <cstdint>
#include <string_view>

namespace cairn::codecs {

enum class [[nodiscard]] Error : uint8_t{
    kOk = 0,
    // The caller's own arguments.
    kInvalidShape,    // a kind, dtype, dim or token count out of its limits
    kInvalidSlice,    // empty, or past what it is a slice of
    kTooLarge,        // the image could pass kImageBytesMax or kTilesMax
    kSourceSize,      // the source is not exactly the slice's payload
    kTargetTooSmall,  // nothing was written
    kUnknownRecipe,   // KnownRecipes() says what there is
    kUnknownBackend,  // KnownBackends() says what there is
    kNoSuchCpu,       // the backend is known, this CPU lacks its instructions
    kBackendFault,    // the backend was forced, and failed its self-test
    kMismatch,        // gathered images differ in more than their slice
    kIncomplete,      // gathered images do not cover the slice
    kNotDemotable,    // the recipe asked for does not nest in the image's
    kNoBank,          // the recipe needs a bank: none was given, or one of something else
    kNoProfile,       // the recipe needs a profile: none was given, or one of something else
    // Bytes that are no image, or no longer the one that was written.
    kTruncated,     // shorter than it says
    kBadMagic,      // not an image
    kBadVersion,    // a version this code does not know
    kBadFlags,      // a flag this code does not know
    kUnknownUnit,   // a coding unit or a symbol mode this code does not know
    kBadHeader,     // a header field out of its limits
    kBadDirectory,  // a directory entry that is not the one its form computes
    kBadPadding,    // a byte that must be zero is not
    kBadChecksum,   // CRC32C of header and directory, or of a tile
    kBadTile,       // a tile's rows or parameters are not ones an encoder writes
    kBadBank,       // a bank's part is not one that docs/internals/formats/bank.md allows
    kBadProfile,    // a profile's part is not one that docs/internals/formats/profile.md allows
};

// The enumerator without its k, in words: "bad checksum". Static storage.
[[nodiscard]] std::string_view Name(Error error);

}  // namespace cairn::codecs
