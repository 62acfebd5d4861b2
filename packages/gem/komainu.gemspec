# frozen_string_literal: true

# scripts/gem fills this folder with the server, and builds.
Gem::Specification.new do |spec|
  spec.name = "komainu"
  spec.version = ENV.fetch("KOMAINU_VERSION")
  spec.summary = "One web server in place of a stack, with Rack applications in workers of its own"
  spec.description = "Komainu serves files, forwards requests, caches, obtains certificates, and runs Rack applications " \
                     "without a second HTTP hop: rackup -s komainu, rails server -u komainu, komainu run config.ru."
  spec.authors = ["The authors of Komainu"]
  spec.homepage = "https://github.com/komainu/komainu"
  spec.license = "Apache-2.0"
  spec.platform = Gem::Platform.local
  # The worker's native half is for this version of Ruby.
  spec.required_ruby_version = "~> #{RUBY_VERSION[/\A\d+\.\d+/]}.0"
  spec.files = Dir["{exe,lib,libexec}/**/*", "LICENSE"].select { |path| File.file?(path) }
  spec.bindir = "exe"
  spec.executables = ["komainu"]
  spec.add_dependency "rack", ">= 2.2"
end
