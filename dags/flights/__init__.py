"""The reference pipeline: will a flight out of New York arrive late?"""
