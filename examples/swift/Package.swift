// swift-tools-version:5.9
// Thalweg's C interface as a module of Swift's, and a program that uses it.
//
//   PKG_CONFIG_PATH=<prefix>/lib/pkgconfig swift run operation
import PackageDescription

let package = Package(
  name: "thalweg",
  products: [.library(name: "CThalweg", targets: ["CThalweg"])],
  targets: [
    .systemLibrary(name: "CThalweg", pkgConfig: "thalweg"),
    .executableTarget(name: "operation", dependencies: ["CThalweg"]),
  ]
)
