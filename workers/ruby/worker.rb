# Started by the server: ruby worker.rb APPLICATION
# frozen_string_literal: true

require_relative "komainu"

Komainu.run(*ARGV)
