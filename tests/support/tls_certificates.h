// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes certificates for tests with OpenSSL. The CA signs all certificates, even invalid ones.

#include <openssl/asn1.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace cairn {

struct TestCertificate {
  std::string certificate;  // PEM
  std::string key;          // PEM
  std::string der;
  long serial = 0;
};

struct TestCertificateOptions {
  std::vector<std::string> uris = {};
  std::vector<std::string> dns = {};
  std::vector<std::string> ips = {};  // four or sixteen bytes each
  std::string common_name = "test";
  long begins_in_s = -3600;
  long ends_in_s = 86400;
  std::string extended_key_usage = "serverAuth,clientAuth";  // empty: none
  bool has_key_of_another = false;
};

class TestCa {
 public:
  explicit TestCa(const std::string& name = "Test CA") : key_(NewKey()) {
    certificate_ = NewCertificate(name, key_, 1, -3600, 365 * 86400L);
    SetIssuer(name);
    AddExtension(certificate_, NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(certificate_, NID_key_usage, "critical,keyCertSign,cRLSign");
    AddExtension(certificate_, NID_subject_key_identifier, "hash");
    CAIRN_CHECK(X509_sign(certificate_, key_, EVP_sha256()) > 0);
  }
  ~TestCa() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  TestCa(const TestCa&) = delete;
  TestCa& operator=(const TestCa&) = delete;

  std::string pem() const { return PemOf(certificate_); }

  TestCertificate Issue(const TestCertificateOptions& options) {
    EVP_PKEY* const key = NewKey();
    TestCertificate made;
    made.serial = ++serials_;
    X509* const leaf = NewCertificate(options.common_name, key, made.serial, options.begins_in_s,
                                      options.ends_in_s);
    X509_set_issuer_name(leaf, X509_get_subject_name(certificate_));
    AddExtension(leaf, NID_basic_constraints, "critical,CA:FALSE");
    if (!options.extended_key_usage.empty()) {
      AddExtension(leaf, NID_ext_key_usage, options.extended_key_usage);
    }
    AddNames(leaf, options);
    CAIRN_CHECK(X509_sign(leaf, key_, EVP_sha256()) > 0);
    made.certificate = PemOf(leaf);
    EVP_PKEY* const other = options.has_key_of_another ? NewKey() : nullptr;
    made.key = PemOf(other != nullptr ? other : key);
    unsigned char* der = nullptr;
    const int bytes = i2d_X509(leaf, &der);
    made.der.assign(reinterpret_cast<const char*>(der), static_cast<size_t>(bytes));
    OPENSSL_free(der);
    EVP_PKEY_free(other);
    EVP_PKEY_free(key);
    X509_free(leaf);
    return made;
  }

  // Returns a list that revokes these serial numbers.
  std::string Revoke(const std::vector<long>& serials, long next_update_in_s = 3600) {
    X509_CRL* const list = X509_CRL_new();
    X509_CRL_set_version(list, 1);
    X509_CRL_set_issuer_name(list, X509_get_subject_name(certificate_));
    ASN1_TIME* const begin = ASN1_TIME_adj(nullptr, std::time(nullptr), 0, -7200);
    ASN1_TIME* const next = ASN1_TIME_adj(nullptr, std::time(nullptr), 0, next_update_in_s);
    X509_CRL_set1_lastUpdate(list, begin);
    X509_CRL_set1_nextUpdate(list, next);
    for (const long serial : serials) {
      X509_REVOKED* const revoked = X509_REVOKED_new();
      ASN1_INTEGER* const number = ASN1_INTEGER_new();
      ASN1_INTEGER_set(number, serial);
      X509_REVOKED_set_serialNumber(revoked, number);
      X509_REVOKED_set_revocationDate(revoked, begin);
      X509_CRL_add0_revoked(list, revoked);
      ASN1_INTEGER_free(number);
    }
    ASN1_TIME_free(begin);
    ASN1_TIME_free(next);
    X509_CRL_sort(list);
    CAIRN_CHECK(X509_CRL_sign(list, key_, EVP_sha256()) > 0);
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509_CRL(bio, list);
    X509_CRL_free(list);
    return TextOf(bio);
  }

 private:
  static EVP_PKEY* NewKey() {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    CAIRN_CHECK(key != nullptr);
    return key;
  }
  static X509* NewCertificate(const std::string& name, EVP_PKEY* key, long serial, long begin_s,
                              long end_s) {
    X509* const made = X509_new();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), serial);
    ASN1_TIME_adj(X509_getm_notBefore(made), std::time(nullptr), 0, begin_s);
    ASN1_TIME_adj(X509_getm_notAfter(made), std::time(nullptr), 0, end_s);
    X509_NAME* const subject = X509_NAME_new();
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.data()),
                               static_cast<int>(name.size()), -1, 0);
    X509_set_subject_name(made, subject);
    X509_set_issuer_name(made, subject);
    X509_NAME_free(subject);
    X509_set_pubkey(made, key);
    return made;
  }
  void SetIssuer(const std::string&) {
    X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  }
  static void AddExtension(X509* certificate, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    CAIRN_CHECK(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  // Adds the names unchanged, even with bytes that are not allowed in a text.
  static void AddNames(X509* certificate, const TestCertificateOptions& options) {
    GENERAL_NAMES* const names = sk_GENERAL_NAME_new_null();
    const auto add = [&](int kind, const std::string& text) {
      GENERAL_NAME* const name = GENERAL_NAME_new();
      ASN1_STRING* const value =
          ASN1_STRING_type_new(kind == GEN_IPADD ? V_ASN1_OCTET_STRING : V_ASN1_IA5STRING);
      ASN1_STRING_set(value, text.data(), static_cast<int>(text.size()));
      GENERAL_NAME_set0_value(name, kind, value);
      sk_GENERAL_NAME_push(names, name);
    };
    for (const std::string& uri : options.uris) add(GEN_URI, uri);
    for (const std::string& dns : options.dns) add(GEN_DNS, dns);
    for (const std::string& ip : options.ips) add(GEN_IPADD, ip);
    if (sk_GENERAL_NAME_num(names) > 0) {
      X509_add1_ext_i2d(certificate, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT);
    }
    GENERAL_NAMES_free(names);
  }
  static std::string TextOf(BIO* bio) {
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    std::string text(data, static_cast<size_t>(bytes));
    BIO_free(bio);
    return text;
  }
  static std::string PemOf(X509* certificate) {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    return TextOf(bio);
  }
  static std::string PemOf(EVP_PKEY* key) {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    return TextOf(bio);
  }

  EVP_PKEY* key_;
  X509* certificate_ = nullptr;
  long serials_ = 100;
};

// Replaces a file atomically, as a careful administrator does.
inline void WriteTestFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// The files of a CA, a server and a client in one folder.
class TestPki {
 public:
  explicit TestPki(std::string folder) : folder_(std::move(folder)) {
    WriteTestFile(File("ca.pem"), ca_.pem());
    // The names include 127.0.0.1 and ::1, because tests connect to these addresses.
    Write("server", {.uris = {"spiffe://test.example/ns/cairn/sa/cairnd"},
                     .dns = {"localhost", "cairnd.test.example"},
                     .ips = {std::string("\x7f\0\0\1", 4),
                             std::string("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16)},
                     .common_name = "cairnd"});
    Write("client",
          {.uris = {"spiffe://test.example/ns/team-a/sa/engine"}, .common_name = "engine"});
  }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  TestCa& ca() { return ca_; }
  // Issues NAME.pem and NAME.key.
  TestCertificate Write(const std::string& name, const TestCertificateOptions& options) {
    TestCertificate made = ca_.Issue(options);
    WriteTestFile(File(name + ".pem"), made.certificate);
    WriteTestFile(File(name + ".key"), made.key);
    return made;
  }

 private:
  const std::string folder_;
  TestCa ca_;
};

}  // namespace cairn
