from segcal.metrics.calibration import CalibrationBins
